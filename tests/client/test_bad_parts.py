"""A part of a value that has no body: it is named by its place."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pydantic
import pytest
from baskets import Item, basket

from rmq_spark.client.bodies.serializers import SERIALIZERS, encode_value


class Loose(pydantic.BaseModel):
    id: Any


NO_ITEM = [Item("a", Decimal(1)), Item("b", object())]
IN_ITSELF = []
IN_ITSELF.append(IN_ITSELF)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (basket(items=NO_ITEM), r"its items\[1\]\.price: .*object"),
        (basket(note={"a": [1, {"b": 2j}]}), r"its note\.a\[1\]\.b: .*complex"),
        (basket(note="\ud800"), r"its note: .*surrogates"),
        (basket(note=1 << 70), "its note: "),
        ({"orders": [Loose(id=1), Loose(id=object())]}, r"its orders\[1\]\.id: "),
        ([IN_ITSELF], r"its (\[0\])+: .*([Rr]ecursion|int)"),
    ],
)
def test_a_part_that_has_no_form_is_named_by_its_place(name, value, place):
    with pytest.raises(TypeError, match=rf"cannot encode .*: {place}"):
        encode_value(value, SERIALIZERS[name])


def test_what_only_looks_like_a_model_is_refused_as_well():
    class Like:
        def model_dump(self, **_):
            raise ValueError("not today")

    with pytest.raises(TypeError, match=r"cannot encode list .*: its \[0\]: .*"):
        encode_value([Like()], SERIALIZERS["json"])
