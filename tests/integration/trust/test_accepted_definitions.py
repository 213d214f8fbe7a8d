"""The definitions that `saga doctor` says a worker accepts, and earlier ones that are named without need."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from saga_workers.doctor.accepted_definitions import check_accepted_definitions
from saga_workers.doctor.doctor_result import DoctorResult
from sagas.definition.digest import digest_of
from sagas.project import Project
from sagas.settings.worker import WorkerSettings
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop

NEVER = "sha256:" + "0" * 64


async def test_earlier_definitions_that_are_not_needed_are_named(shop: Shop) -> None:
    text = (shop.project.settings.definitions[0] / "own.saga.yaml").read_text(encoding="utf-8")
    earlier, keys = text.replace("maxLength: 5", "maxLength: 6"), "k" * 32
    header = shop.header(earlier)
    [present] = [digest_of(definition) for name, definition in shop.project.definitions.items() if name == "own"]
    async with running_worker(shop.with_keys(keys)) as client:
        signing = client.project.settings.signing_keys()
        run = await shop.start(client, "own", {"text": "xxxxxx"}, header, keys=signing)
        await run.result()
        digest = (await client.show(run.id))["digest"]
        assert digest != present

        async def results(*digests: str, accept: str = "project") -> list[DoctorResult]:
            project = shop.with_keys(keys, accept=accept, earlier=digests)
            return await check_accepted_definitions(project, client.temporal, ledger_answers=False)

        async def is_known() -> bool:
            return len(await results(digest)) == 1  # the visibility index lags

        await until(is_known)
        [said, *findings] = await results(digest, present, NEVER)
        assert said.message == (
            "those of the project as its files are now, and 3 earlier ones of signed starts (worker.accept: project)"
        )
        assert [(finding.ok, finding.message) for finding in findings] == [
            (None, f"{present} is the present definition of own, no earlier one"),
            (None, f"no saga is known that has ended with the definition {NEVER}"),
        ]
        [signed] = await results(accept="signed")
        assert "others whose start its key has signed" in signed.message
        assert await results(accept="any") == []


@pytest.mark.slow
async def test_an_earlier_definition_that_nobody_starts_any_more_is_named(bank: Bank) -> None:
    bank.open_accounts(2)
    id, client = f"t-{uuid.uuid4()}", bank.client
    await client.start("transfer", {"id": id, "from": "a1", "to": "a2", "amount": 7})
    digest = (await finished(client, id))["digest"]
    await until(lambda: bank.states() == {id: "COMPLETED"})
    (client.project.settings.definitions[0] / "transfer.saga.yaml").unlink()
    worker = WorkerSettings(accept="project", earlier_definitions=(digest, NEVER))
    project = Project(client.project.settings.model_copy(update={"worker": worker}), client.project.actions)
    assert len(await check_accepted_definitions(project, None, ledger_answers=True)) == 1
    with psycopg.connect(bank.url.replace("+psycopg", ""), autocommit=True) as database:
        database.execute("update saga_run set started_at = started_at - interval '40 days'")
    [_, finding] = await check_accepted_definitions(project, None, ledger_answers=True)
    assert f"{digest} is a definition of transfer that was started last on" in finding.message
