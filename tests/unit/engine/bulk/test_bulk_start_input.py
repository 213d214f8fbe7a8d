"""The input of a bulk workflow, which any client may send."""

from __future__ import annotations

import json

import pytest
from temporalio.exceptions import ApplicationError

from sagas.workflow.bulk_request import read_request


@pytest.mark.parametrize("size", ["1e999", "-1e999", "NaN", "-1", '"many"', "[1]"])
def test_a_chunk_size_that_is_no_positive_number_is_refused(size: str) -> None:
    value = json.loads(f'{{"saga": "order", "sagas": [["order-1", {{}}, {{}}]], "chunk_size": {size}}}')
    with pytest.raises(ApplicationError, match=r"the input of saga\.bulk") as refused:
        read_request(value)
    assert refused.value.type == "SagaRefused"
