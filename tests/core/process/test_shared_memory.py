"""Messages by shared memory: what comes out is what was put in, whether a slot had room for it or not."""

import os

import pytest

from pipeline.core.process.shared_memory import Parcel, Slots

PARTS = [b"one", None, b"", b"three" * 3]


@pytest.mark.parametrize(("size", "by_slot"), [(64, True), (18, True), (16, False)])
def test_parts_come_out_as_they_were_put(size: int, by_slot: bool) -> None:
    slots = Slots(1, size)
    parcel = slots.put(slots.take(), PARTS)
    assert (parcel.slot is not None, list(parcel.parts) == []) == (by_slot, by_slot)
    assert slots.get(parcel) == PARTS


def test_a_slot_is_used_by_one_message_at_a_time() -> None:
    slots = Slots(2, 64)
    first, second = slots.take(), slots.take()
    assert {first, second} == {0, 1}
    assert slots.take() is None
    assert slots.get(slots.put(None, PARTS)) == PARTS
    slots.give_back(None)
    assert slots.take() is None
    slots.give_back(first)
    assert slots.take() == first


def test_another_process_reads_and_answers_in_place() -> None:
    slots = Slots(1, 64)
    slot = slots.take()
    parcel = slots.put(slot, PARTS)
    child = os.fork()
    if child == 0:
        os._exit(0 if slots.get(parcel) == PARTS and slots.put(slot, [b"read"]).slot == slot else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slots.get(Parcel([4], slot)) == [b"read"]
