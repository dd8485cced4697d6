"""What a power loss may leave of one file."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks.file_versions import PAGE, SECTOR, Choices, FileVersions, Image
from support.disks.power_loss import every_state


def durable(size):
    return FileVersions(Image(size, {}))


def written_whole(file, data):
    file.truncate(0)
    file.write(data, 0)
    return file.begin_flush()


def flush(file):
    file.end_flush(file.begin_flush())


def found(file):
    """Return every content that a power loss may leave, without torn pages."""
    return {image.content for image in every_state(file.draw)}


def drawn(file, count=300, odds=0.5, seed=1):
    """Return random contents that a power loss may leave, with torn pages."""
    dice = random.Random(seed)
    return {file.draw(Choices(dice, odds)).content for _ in range(count)}


# ---- flushes


def test_failed_flush_requires_rewriting_the_data():
    file = durable(2 * PAGE)
    file.write(b"lost", 0)
    file.write(b"once", PAGE)
    file.fail_flush(file.begin_flush())
    file.write(b"more", PAGE)
    flush(file)
    assert {data[:4] for data in found(file)} == {bytes(4), b"lost"}
    assert {data[PAGE : PAGE + 4] for data in found(file)} == {b"more"}


kinds = st.sampled_from(["write", "write", "begin", "end", "end", "fail"])
steps = st.lists(st.tuples(kinds, st.integers(0, 2)), max_size=25)


@given(steps)
def test_page_versions_match_a_full_history(steps):
    """The full history has the versions of each page, and the times of flushes."""
    file, under_way, failed = durable(3 * PAGE), [], []
    history = {page: [(-1, 0)] for page in range(3)}
    first = dict.fromkeys(range(3), 0)  # the first version that may be found
    for at, (step, number) in enumerate(steps):
        if step == "write":
            value = at % 255 + 1
            file.write(bytes([value]), number * PAGE)
            history[number].append((at, value))
        elif step == "begin":
            under_way.append((at, file.begin_flush()))
        elif under_way:
            began, mark = under_way.pop(number % len(under_way))
            if step == "fail":
                file.fail_flush(mark)
                failed.append(began)
                continue
            file.end_flush(mark)
            for page, versions in history.items():
                last = max(index for index, (written, _) in enumerate(versions) if written < began)
                if not any(versions[last][0] < other for other in failed):
                    first[page] = max(first[page], last)
    contents = {tuple(data[page * PAGE] for page in range(3)) for data in found(file)}
    for page, versions in history.items():
        allowed = {value for _, value in versions[first[page] :]}
        assert {content[page] for content in contents} == allowed
        assert {data[page * PAGE] for data in drawn(file, count=10)} <= allowed
    worst, best = (file.draw(Choices(random.Random(1), odds)).content for odds in (0.0, 1.0))
    assert [worst[page * PAGE] for page in range(3)] == [history[p][first[p]][1] for p in range(3)]
    assert [best[page * PAGE] for page in range(3)] == [history[p][-1][1] for p in range(3)]


def test_durable_pages_are_stored_once():
    def size_after(rounds):
        file = durable(2 * PAGE)
        for number in range(rounds):
            mark = file.begin_flush()
            file.write(bytes([number % 251]) * PAGE, PAGE // 2)
            file.end_flush(mark)
        flush(file)
        return len(pickle.dumps(file))

    assert size_after(1000) < size_after(10) + 100


# ---- pages and sectors


def test_write_over_two_pages_can_be_lost_by_half():
    file = durable(2 * PAGE)
    file.write(b"ab", PAGE - 1)
    assert {data[PAGE - 1 : PAGE + 1] for data in found(file)} == {b"\0\0", b"a\0", b"\0b", b"ab"}


def test_page_can_be_torn_between_sectors_but_not_within_one():
    file = durable(PAGE)
    file.write(b"x" * PAGE, 0)
    pages = drawn(file)
    sectors = {page[at : at + SECTOR] for page in pages for at in range(0, PAGE, SECTOR)}
    assert sectors == {bytes(SECTOR), b"x" * SECTOR}
    assert len(pages) > 10


# ---- sizes


def test_new_file_can_be_empty_until_flushed():
    file = durable(0)
    file.truncate(PAGE)
    assert found(file) == {b"", bytes(PAGE)}
    flush(file)
    assert found(file) == {bytes(PAGE)}


def test_truncate_during_a_flush_is_not_flushed():
    file = durable(0)
    mark = file.begin_flush()
    file.truncate(PAGE)
    file.end_flush(mark)
    assert found(file) == {b"", bytes(PAGE)}


def test_unflushed_growth_may_be_cut_at_any_sector():
    file = durable(0)
    file.write(b"a" * 100, 0)
    flush(file)
    file.write(b"b" * 1000, 100)
    whole, sizes = b"a" * 100 + b"b" * 1000, (100, 512, 1024, 1100)
    lost = whole[:100].ljust(1100, b"\0")
    assert found(file) == {data[:size] for data in (whole, lost) for size in sizes}


def test_file_written_whole_can_be_anything_between_old_and_new():
    file = FileVersions(Image.of(b"old"))
    mark = written_whole(file, b"n" * 1000)
    left = drawn(file, odds=0.1) | drawn(file, odds=0.9)
    assert {b"old", b"", b"n" * 512, b"n" * 1000, bytes(1000), bytes(512)} <= left
    assert b"old" not in {data[:3] for data in left if len(data) > 3}
    file.end_flush(mark)
    assert found(file) == {b"n" * 1000}


def test_failed_whole_file_write_may_leave_anything():
    file = FileVersions(Image.of(b"old"))
    file.fail_flush(written_whole(file, b"new"))
    flush(file)
    assert {b"", b"new"} <= found(file)
    file.end_flush(written_whole(file, b"new"))
    assert found(file) == {b"new"}


def test_flush_begun_before_a_truncation_guarantees_nothing_written_later():
    file = FileVersions(Image.of(b"old"))
    file.write(b"mid", 0)
    mark = file.begin_flush()
    second = written_whole(file, b"new")
    file.end_flush(mark)
    assert found(file) == {b"mid", b"", bytes(3), b"new"}
    file.end_flush(second)
    assert found(file) == {b"new"}


def test_file_model_truncates_to_zero_or_grows_only():
    file = durable(10)
    file.truncate(10)
    assert found(file) == {bytes(10)}
    with pytest.raises(ValueError, match="of 10 bytes to 0, not to 3"):
        file.truncate(3)


def test_data_cut_off_by_power_loss_does_not_return_when_the_file_grows():
    file = FileVersions(Image.of(b""))
    file.write(b"x" * (PAGE + 100), 0)
    for image in every_state(file.draw):
        again = FileVersions(image)
        again.write(b"\0", 2 * PAGE - 1)
        flush(again)
        (content,) = found(again)
        assert content == image.content.ljust(2 * PAGE, b"\0")


def test_write_after_a_gap_leaves_old_or_new_size():
    file = FileVersions(Image.of(b"old"))
    file.write(b"new", 5 * PAGE)
    assert {len(content) for content in found(file)} == {len(b"old"), 5 * PAGE + len(b"new")}
