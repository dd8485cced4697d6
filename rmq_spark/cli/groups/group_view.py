"""Group view: what ``rocketpoll group describe`` prints of a group, and its document for programs.

    figures, members, queues ──> tables that fit the terminal ──> the diagnosis, and what to type

Values that all queues have in common, such as the topic, are printed once above their table. If
there are many queues, only those that have waited longest are shown.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click

from rmq_spark.cli.groups.diagnosis import (
    NEVER_MS,
    GroupCondition,
    GroupDiagnosis,
    current_time_ms,
)
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.cli.shell.output import (
    common_values,
    fitted_lines,
    format_age,
    format_cell,
    local_time,
    queue_fields,
    wrap_text,
)
from rmq_spark.client.admin.lag import GroupState, QueueState, total_lag
from rmq_spark.errors import format_count

QUEUES_SHOWN_MAX: Final = 10
QUEUE_COLUMNS: Final = (
    *("topic", "broker", "queue", "committed", "end", "behind", "in_flight", "last_consumed"),
    *("waiting_since", "last_tried", "member"),
)
_TOPICS_SHOWN_MAX: Final = 10
_MEMBERS_SHOWN_MAX: Final = 10
_COLORS: Final = {
    GroupCondition.OK: "green",
    GroupCondition.BEHIND: None,
    GroupCondition.UNASSIGNED: "yellow",
    GroupCondition.STUCK: "red",
    GroupCondition.OFFLINE: "yellow",
}


@dataclass(frozen=True)
class GroupView:
    """Prints groups.

    Attributes:
        access: The connection, for the commands that are shown.
        with_all_queues: Whether to show all queues, however many.
        is_lag_only: Whether to show the queues that have lag, and no others.
    """

    access: ClusterAccess
    with_all_queues: bool
    is_lag_only: bool

    def document(self, state: GroupState, diagnosis: GroupDiagnosis) -> dict[str, object]:
        """Return a group as a document for programs."""
        return {
            **_figures(state),
            "diagnosis": _diagnosis_fields(diagnosis),
            "queues": self.queue_rows(state),
            "online": [
                {
                    "client": member.client_id,
                    "address": member.client_addr,
                    "language": member.language,
                    "queues": state.queues_of(member.client_id),
                }
                for member in state.members
            ],
        }

    def queue_rows(self, state: GroupState) -> list[dict[str, object]]:
        """Return the queues of a group as rows for programs."""
        return [_queue_fields(each) for each in self._queues(state)]

    def _queues(self, state: GroupState) -> list[QueueState]:
        return [each for each in state.queues if each.lag.messages or not self.is_lag_only]

    def show_tables(self, state: GroupState) -> None:
        """Print the figures of a group, its members and its queues."""
        click.echo(wrap_text(_summary(state)))
        self._show_members(state)
        queues = self._queues(state)
        is_shortened = (
            len(queues) > QUEUES_SHOWN_MAX and not self.with_all_queues and not self.is_lag_only
        )
        if is_shortened:
            self._show_topics(queues)
            queues.sort(key=lambda each: (each.waiting_since_ms or NEVER_MS, -each.lag.messages))
        shown = queues[:QUEUES_SHOWN_MAX] if is_shortened else queues
        self._show_queues(state, shown)
        if is_shortened:
            text = (
                f"{len(shown)} of {len(queues):,} queues, those that have waited longest. --queues "
                "shows all, --lag-only those with lag."
            )
            _write(wrap_text(text))
        sys.stdout.flush()

    def show_diagnosis(self, state: GroupState, diagnosis: GroupDiagnosis) -> None:
        """Print the condition of a group in words, and the commands to run next."""
        title = f"{diagnosis.title}."
        if sys.stdout.isatty():
            title = click.style(title, fg=_COLORS[diagnosis.condition], bold=True)
        _write("", title, wrap_text(diagnosis.text))
        if diagnosis.queue is not None and not state.is_popping:
            queue = diagnosis.queue.lag.queue
            queue_option = ("--queue", queue_text(queue))
            at = ("--offset", str(diagnosis.queue.next_offset), "-n", "1")
            show_command = self.access.next_command(
                "consume", queue.topic, options=(*queue_option, *at)
            )
            to = ("--topic", queue.topic, *queue_option, "--to", "+1")
            skip = self.access.next_command("group seek", state.name, options=to)
            _write("To see the message:", f"  {show_command}", "To skip it:", f"  {skip}")
        if state.waiting_for_retry:
            count = f"{state.waiting_for_retry:,}"
            _write(f"Failed messages that are due for another try: {count}.")
        if state.dead_letters:
            _write(f"Dead letters: {state.dead_letters:,}. To see them:")
            _write(f"  {self.access.next_command('dlq show', state.name)}")

    def _show_members(self, state: GroupState) -> None:
        if not state.members:
            return
        rows = [
            {
                "member": number,
                "client": member.client_id,
                "address": member.client_addr,
                "language": member.language,
                "queues": None if state.is_popping else state.queues_of(member.client_id),
            }
            for number, member in enumerate(state.members, 1)
        ]
        shown = rows if self.with_all_queues else rows[:_MEMBERS_SHOWN_MAX]
        _write(
            "",
            *fitted_lines(
                shown,
                ("member", "client", "address", "language", "queues"),
                optional_columns=("language", "address"),
                flexible="client",
            ),
        )
        if len(rows) > len(shown):
            _write(f"and {len(rows) - len(shown):,} more members. --queues shows all.")

    def _show_topics(self, queues: Sequence[QueueState]) -> None:
        by_topic: dict[str, list[QueueState]] = defaultdict(list)
        for each in queues:
            by_topic[each.lag.queue.topic].append(each)
        if len(by_topic) == 1:
            return
        rows: list[dict[str, object]] = [
            {
                "topic": topic,
                "queues": len(found),
                "behind": total_lag(each.lag for each in found),
                "waiting": _age(min(each.waiting_since_ms or NEVER_MS for each in found)),
            }
            for topic, found in by_topic.items()
        ]
        rows.sort(key=lambda row: (-int(str(row["behind"])), str(row["topic"])))
        columns = ("topic", "queues", "behind", "waiting")
        _write("", *fitted_lines(rows[:_TOPICS_SHOWN_MAX], columns, flexible="topic"))
        if len(rows) > _TOPICS_SHOWN_MAX:
            _write(f"and {len(rows) - _TOPICS_SHOWN_MAX:,} more topics with less lag")

    def _show_queues(self, state: GroupState, queues: Sequence[QueueState]) -> None:
        if not queues:
            _write("", "no queue has lag" if state.queues else "no offsets committed yet")
            return
        numbers = {member.client_id: str(at) for at, member in enumerate(state.members, 1)}
        brokers = {each.lag.queue.broker_name for each in queues}
        rows = [_queue_row(each, numbers, with_broker=len(brokers) > 1) for each in queues]
        common = common_values(
            rows, ("topic", "in flight", "consumed", "waiting", "tried", "member")
        )
        of_all = [f"topic {common['topic']}"] if "topic" in common else []
        of_all += [f"broker {brokers.pop()}"] if len(brokers) == 1 else []
        of_all += [
            f"{name} {format_cell(value)}"
            for name, value in common.items()
            if name != "topic" and value is not None
        ]
        columns = [each for each in rows[0] if each not in common]
        if not state.in_flight and "in flight" in columns:
            columns.remove("in flight")
        _write("", wrap_text(f"{format_count(len(rows), 'queue')}: {', '.join(of_all)}"))
        _write(
            *fitted_lines(
                rows, columns, optional_columns=("end", "consumed", "committed"), flexible="topic"
            )
        )


def _figures(state: GroupState) -> dict[str, object]:
    return {
        "group": state.name,
        "members": len(state.members),
        "behind": state.behind,
        "in_flight": state.in_flight,
        "waiting_for_retry": state.waiting_for_retry,
        "dead_letters": state.dead_letters,
    }


def _summary(state: GroupState) -> str:
    members = format_count(len(state.members), "member")
    in_flight = f"{state.in_flight:,} in flight, " if state.in_flight else ""
    return (
        f"{state.name}: {members} online, {state.behind:,} behind, {in_flight}"
        f"{state.waiting_for_retry:,} waiting for retry, {state.dead_letters:,} dead letters"
    )


def _diagnosis_fields(diagnosis: GroupDiagnosis) -> dict[str, object]:
    state = diagnosis.queue
    return {
        "condition": diagnosis.condition.value,
        "title": diagnosis.title,
        "text": diagnosis.text,
        "next": None
        if state is None
        else {**queue_fields(state.lag.queue), "offset": state.next_offset},
    }


def _queue_fields(state: QueueState) -> dict[str, object]:
    lag = state.lag
    return {
        **queue_fields(lag.queue),
        "committed": lag.consumer_offset,
        "end": lag.broker_offset,
        "behind": lag.messages,
        "in_flight": lag.in_flight,
        "last_consumed": local_time(lag.last_timestamp),
        "waiting_since": local_time(state.waiting_since_ms or 0),
        "last_tried": local_time(state.last_tried_ms or 0),
        "member": state.member,
    }


def _queue_row(
    state: QueueState, numbers: Mapping[str, str], *, with_broker: bool
) -> dict[str, object]:
    lag = state.lag
    return {
        "topic": lag.queue.topic,
        "queue": queue_text(lag.queue) if with_broker else lag.queue.queue_id,
        "committed": lag.consumer_offset,
        "end": lag.broker_offset,
        "behind": lag.messages,
        "in flight": lag.in_flight or None,
        "consumed": _age(lag.last_timestamp),
        "waiting": _age(state.waiting_since_ms),
        "tried": _age(state.last_tried_ms),
        "member": None if state.member is None else numbers.get(state.member, state.member),
    }


def _age(timestamp_ms: int | None) -> str | None:
    """Return how long ago a time was, for a narrow column."""
    if not timestamp_ms or timestamp_ms == NEVER_MS:
        return None
    return format_age((current_time_ms() - timestamp_ms) / 1_000).removesuffix(" ago")


def _write(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
