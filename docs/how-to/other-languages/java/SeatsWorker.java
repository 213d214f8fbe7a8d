import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.annotation.JsonProperty;
import io.temporal.activity.Activity;
import io.temporal.activity.ActivityInterface;
import io.temporal.activity.ActivityMethod;
import io.temporal.failure.ApplicationFailure;
import io.temporal.worker.WorkerFactory;
import java.math.BigDecimal;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** "java … SeatsWorker TASK_QUEUE" serves the steps of the saga booking. */
public class SeatsWorker {

  /** The key of an operation, which each attempt has, and the key of what a probe or an undo is about. */
  record Keys(String key, @JsonProperty("forward_key") String forwardKey) {}

  /** The one argument of seats.release and seats.find: their `with` is empty. */
  record Call(@JsonProperty("_saga") Keys saga) {}

  /** The one argument of seats.hold: its `with`, and the call. */
  record HoldCall(
      String flight,
      BigDecimal price,
      long invoice,
      List<String> seats,
      String voucher,
      @JsonProperty("_saga") Keys saga) {

    Booking booking() {
      return new Booking(flight, price, invoice, seats, voucher);
    }
  }

  /** What a probe returns. */
  @JsonInclude(JsonInclude.Include.NON_NULL)
  record Answer(String probe, Booking result) {}

  @ActivityInterface
  public interface SeatsActivities {
    @ActivityMethod(name = "seats.hold")
    Booking hold(HoldCall request) throws InterruptedException;

    @ActivityMethod(name = "seats.release")
    void release(Call request);

    @ActivityMethod(name = "seats.find")
    Answer find(Call request);
  }

  static class Seats implements SeatsActivities {
    // What was done under which key. In production these are rows, written in the transaction of the effect.
    private final Map<String, Booking> held = new HashMap<>(); // the answer to a repeated request
    private final Set<String> refused = new HashSet<>(); // keys without an effect, for good
    private final Set<String> released = new HashSet<>(); // undos that were carried out

    /** Holds the seats once per key, and never for a key that was undone or sealed. */
    @Override
    public Booking hold(HoldCall request) throws InterruptedException {
      if (request.flight().equals("SLOW")) {
        Thread.sleep(10_000); // an effect that comes after the timeout of its attempt
      }
      return holdNow(request);
    }

    private synchronized Booking holdNow(HoldCall request) {
      String key = request.saga().key();
      if (refused.contains(key)) {
        note("hold", request, "late");
        throw ApplicationFailure.newNonRetryableFailure("the seats were released", "AlreadyCompensated");
      }
      if (request.flight().equals("FULL")) {
        note("hold", request, "rejected");
        throw rejected(
            "the flight is sold out",
            new Booking.RefusalDetail(
                "sold-out", request.price(), request.invoice(), request.seats(), request.voucher()));
      }
      held.putIfAbsent(key, request.booking());
      note("hold", request, "held");
      if (request.flight().equals("LOST")) {
        throw new IllegalStateException("the answer is lost"); // the effect is there, and the engine cannot know
      }
      return held.get(key);
    }

    /** Gives the seats back, if they were held, and refuses each later attempt to hold them. */
    @Override
    public synchronized void release(Call request) {
      refused.add(request.saga().forwardKey());
      if (released.add(request.saga().key())) {
        held.remove(request.saga().forwardKey());
      }
      note("release", request, "released");
    }

    /** Says whether the seats are held. If not, it refuses the key, so that "absent" stays true. */
    @Override
    public synchronized Answer find(Call request) {
      Booking result = held.get(request.saga().forwardKey());
      if (result != null) {
        note("find", request, "done");
        return new Answer("done", result);
      }
      refused.add(request.saga().forwardKey());
      note("find", request, "absent");
      return new Answer("absent", null);
    }

    /** A definite no: with the number of the attempt the engine knows that no earlier one is under way. */
    private static ApplicationFailure rejected(String message, Object details) {
      int attempt = Activity.getExecutionContext().getInfo().getAttempt();
      Map<String, Object> detail = Map.of("attempt", attempt, "details", details);
      return ApplicationFailure.newNonRetryableFailure(message, "Rejected", detail);
    }

    /** Prints a request as it was read, and the answer. */
    private static void note(String operation, Object request, String answer) {
      Booking.printLine(Map.of("operation", operation, "request", request, "answer", answer));
    }
  }

  public static void main(String[] arguments) {
    WorkerFactory factory = WorkerFactory.newInstance(Booking.connect());
    factory.newWorker(arguments[0]).registerActivitiesImplementations(new Seats());
    Runtime.getRuntime().addShutdownHook(new Thread(factory::shutdown)); // at SIGINT and SIGTERM
    factory.start();
    factory.awaitTermination(Long.MAX_VALUE, TimeUnit.DAYS);
  }
}
