import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.temporal.client.WorkflowClient;
import io.temporal.client.WorkflowClientOptions;
import io.temporal.common.converter.DataConverter;
import io.temporal.common.converter.DefaultDataConverter;
import io.temporal.common.converter.JacksonJsonPayloadConverter;
import io.temporal.serviceclient.WorkflowServiceStubs;
import io.temporal.serviceclient.WorkflowServiceStubsOptions;
import java.math.BigDecimal;
import java.time.Duration;
import java.util.List;

/**
 * The input of the saga; its fields are arguments and result of seats.hold. A BigDecimal has the digits of 12.10, and
 * a long is whole above 2^53: a double or a Map of objects would change them.
 */
record Booking(String flight, BigDecimal price, long invoice, List<String> seats, String voucher) {

  /** The data of the signal that the saga waits for. */
  record Approval(boolean approved, BigDecimal limit) {}

  /** The result of a completed saga. */
  record Output(Booking held, Approval approval) {}

  /** The reason of a rejection by seats.hold. */
  record RefusalDetail(String code, BigDecimal price, long invoice, List<String> seats, String voucher) {}

  /** The fields of "saga show" that this client reads. A failed saga has it as its first detail. */
  record Story(String state, Reason reason) {}

  record Reason(String kind, String step, String message, RefusalDetail details) {}

  /** Jackson fails at fields that a record does not have: `_saga` and the story have more of them. */
  private static final ObjectMapper JSON =
      JacksonJsonPayloadConverter.newDefaultObjectMapper()
          .configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false)
          .configure(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS, true);

  static WorkflowClient connect() {
    WorkflowServiceStubsOptions options =
        WorkflowServiceStubsOptions.newBuilder()
            .setTarget(System.getenv("TEMPORAL_ADDRESS"))
            .setSystemInfoTimeout(Duration.ofMinutes(1))
            .build();
    WorkflowServiceStubs service = WorkflowServiceStubs.newConnectedServiceStubs(options, Duration.ofMinutes(1));
    DataConverter converter =
        DefaultDataConverter.newDefaultInstance()
            .withPayloadConverterOverrides(new JacksonJsonPayloadConverter(JSON));
    return WorkflowClient.newInstance(
        service, WorkflowClientOptions.newBuilder().setDataConverter(converter).build());
  }

  static <T> T read(String text, Class<T> type) throws JsonProcessingException {
    return JSON.readValue(text, type);
  }

  /** Prints one line of JSON. */
  static void printLine(Object value) {
    try {
      System.out.println(JSON.writeValueAsString(value));
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }
}
