"""Every row of the protocol decisions has tests that fail when it is broken, and docs/protocol.md and quotations are true.

`ROWS` is the table from row to tests. The decisions and the specifications live in a folder beside the repository; the
tests that read them are skipped where it is absent.
"""

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import maxam
from maxam import __version__
from maxam.config import Limits, load_settings
from maxam.content import pack
from maxam.errors import ProtocolError
from maxam.records import REJECTION_RESULTS
from maxam.stomp import encoder
from maxam.stomp.events import VERSION_1_1, VERSION_1_2, Connect, Event, Failure
from maxam.stomp.frames import SERVER_COMMANDS, Decoder, Frame
from maxam.stomp.protocol import Protocol
from tests.sans_io import World

ROOT = Path(__file__).parents[2]
PACKAGE = Path(maxam.__file__).parent  # a wheel has the source beside the machine code
SHARED = Path(os.environ.get("MAXAM_SHARED", "/work/shared"))
PAGE = (ROOT / "docs/protocol.md").read_text()

beside = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED}, which is not part of the repository, is absent")

# Where the tests of a prefix live.
FILES = {
    "clauses": "unit/test_protocol_clauses.py",
    "protocol": "unit/test_protocol.py",
    "frames": "unit/test_frames.py",
    "encoder": "unit/test_encoder.py",
    "broker": "unit/test_broker.py",
    "marks": "unit/test_marks.py",
    "delivery": "properties/test_delivery.py",
    "client": "streams/test_client.py",
    "window": "unit/test_window.py",
    "globs": "unit/test_globs.py",
    "policy": "unit/test_policy.py",
    "rule": "unit/test_rule.py",
    "config": "unit/test_config.py",
    "codec": "properties/test_codec.py",
    "matching": "properties/test_glob_matching.py",
    "connection": "streams/test_gateway_connection.py",
    "tls": "streams/test_gateway_tls.py",
    "process": "faults/test_gateway_process.py",
}

# Section and row of the decisions, and the tests that fail when the row is broken: prefix of FILES, then names.
ROWS: dict[str, dict[str, str]] = {
    "Frames": {
        "versions": """clauses TestFrames.test_no_common_version TestFrames.test_highest_version
            protocol TestConnect.test_highest_common_version TestConnect.test_no_common_version""",
        "CONNECT / STOMP": """clauses TestFrames.test_connect_is_not_escaped TestFrames.test_second_connect
            TestFrames.test_nothing_takes_effect_before_connect
            protocol TestConnect.test_either_command_and_line_end TestConnect.test_any_other_frame_first
            TestConnect.test_second_connect
            frames TestEscapes.test_none_in_connect encoder TestServer.test_connected TestClient.test_connect""",
        "escaping": """clauses TestFrames.test_escapes_of_the_receivers_version TestFrames.test_repeated_and_padded_headers
            TestFrames.test_malformed_header_lines
            frames TestEscapes.test_defined TestEscapes.test_undefined TestFrame.test_never_trimmed
            TestFrame.test_first_of_repeated_headers_wins TestMalformed.test_not_utf_8
            encoder test_escape codec test_round_trip test_message_round_trip""",
        "line ends": """clauses TestFrames.test_ends_of_line_between_frames
            frames TestLineEnds.test_crlf_in_1_2 TestLineEnds.test_mixed_in_1_2 TestLineEnds.test_stray_carriage_return_in_1_2
            TestLineEnds.test_carriage_return_is_data_in_1_1 TestLineEnds.test_crlf_is_refused_in_1_1
            TestFrame.test_ends_of_line_between_frames protocol TestConnect.test_version_holds_from_the_next_frame_on""",
        "bodies": """clauses TestFrames.test_bodies_pass_unchanged TestFrames.test_length_that_is_not_exact
            TestFrames.test_message_declares_the_length_that_its_sender_did_not TestFrames.test_body_where_none_may_be
            frames TestBody.test_content_length_is_exact TestBody.test_nul_must_follow TestBody.test_only_send
            encoder TestServer.test_message_of_a_delete protocol TestSend.test_least""",
        "limits": """clauses TestFrames.test_a_limit_is_named_as_soon_as_it_is_exceeded TestFrames.test_limits_of_a_stranger
            TestFrames.test_defaults TestFrames.test_a_connect_that_never_comes
            TestDestinations.test_a_malformed_destination_is_rejected_with_the_reason
            frames TestLimits.test_header_line TestLimits.test_headers TestLimits.test_all_headers TestLimits.test_connect
            TestBody.test_declared_over_limit TestBody.test_undeclared_over_limit TestMalformed.test_command_too_long
            TestBody.test_not_digits protocol TestSubscribe.test_limits TestSend.test_long_destination
            TestConnect.test_limit_of_a_stranger config test_every_limit_can_be_set_to_its_default""",
        "unknown command": """clauses TestFrames.test_frames_that_end_the_connection TestFrames.test_nack_changes_nothing
            frames TestMalformed.test_unknown_command
            protocol test_transaction test_transactions test_nack TestAck.test_missing TestSubscribe.test_missing
            TestSend.test_missing_destination TestSubscribe.test_bad_unsubscribe""",
        "receipt": """clauses TestFrames.test_every_frame_but_connect_may_have_a_receipt
            TestFrames.test_messages_may_come_before_the_receipt_of_their_subscribe
            TestFrames.test_a_receipt_waits_for_its_own_commit
            TestFrames.test_an_empty_receipt_is_answered TestSubscribe.test_resumed_waits_for_what_made_it
            broker test_nothing_leaves_before_its_commit test_an_accepted_change_has_the_next_revision_and_message_id_is_it""",
        "ERROR": """clauses TestFrames.test_error_comes_behind_the_receipts_before_it_and_nothing_behind_it
            TestFrames.test_error_waits_for_commits_one_second_at_most TestFrames.test_frames_that_end_the_connection
            encoder TestServer.test_error frames TestMalformed.test_receipt
            broker test_a_duplicate_id_on_a_live_subscription_is_an_error
            connection test_finished_peer_is_flushed_then_lingers_until_the_client_closes test_lingering_ends_after_its_time""",
        "flags": """clauses TestFrames.test_frames_that_end_the_connection
            protocol TestSubscribe.test_flags TestSubscribe.test_bad_unsubscribe TestSubscribe.test_event""",
    },
    "Destinations": {
        "destination": """clauses TestDestinations.test_a_malformed_destination_is_rejected_with_the_reason
            TestDestinations.test_no_normalisation TestDestinations.test_never_checked_at_recovery
            TestDestinations.test_a_glob_that_cannot_match_is_an_error_that_says_why
            TestDestinations.test_a_durable_glob_is_kept_over_a_restart
            globs test_well_formed test_ill_formed test_token_characters_are_those_outside_the_categories
            test_plain_and_general_checks_agree""",
        "globs": """clauses TestDestinations.test_a_glob_that_cannot_match_is_an_error_that_says_why
            globs test_matching test_no_set_matches_a_slash test_refused test_hostile_patterns_finish
            matching test_matches_as_the_reference_does""",
    },
    "CONNECT": {
        "`host`": "clauses TestConnect.test_host protocol TestConnect.test_host",
        "`login`, `passcode`": """clauses TestConnect.test_login_and_passcode_are_ignored_and_never_told
            protocol TestConnect.test_login_is_ignored frames TestMalformed.test_passcode_is_not_told""",
        "`heart-beat`": """clauses TestConnect.test_malformed_heart_beat TestConnect.test_connected_always_carries_heart_beat
            TestConnect.test_we_send_heart_beats TestConnect.test_we_miss_heart_beats
            TestConnect.test_silence_counts_only_while_we_read
            protocol TestConnect.test_heart_beat TestConnect.test_bad_heart_beat TestHeartBeat.test_intervals
            TestHeartBeat.test_silence TestHeartBeat.test_silence_counts_only_while_we_read TestHeartBeat.test_error
            config test_errors_name_file_key_fault_and_remedy""",
        "identity": """clauses TestConnect.test_an_unknown_certificate_is_refused
            TestConnect.test_an_unknown_certificate_without_rights policy test_fingerprints_name_principals
            tls test_identity_is_the_digest_of_the_certificate""",
        "`client-id`": """clauses TestConnect.test_a_bad_client_id TestConnect.test_a_session_without_a_name_gets_128_random_bits
            protocol TestConnect.test_client_id TestConnect.test_bad_client_id
            broker test_a_client_id_names_a_session_of_its_principal test_the_newest_connection_of_a_session_wins
            test_takeovers_are_limited_per_minute""",
        "takeover": """clauses TestConnect.test_takeover_ends_the_transient_subscriptions
            broker test_the_newest_connection_of_a_session_wins test_the_old_connection_is_told_even_when_its_commit_hangs""",
        "`window:<n>`": """clauses TestConnect.test_a_bad_window TestConnect.test_window
            protocol TestConnect.test_window TestConnect.test_bad_window window test_a_fixed_window_stays""",
        "CONNECTED": "clauses TestFrames.test_connect_is_not_escaped encoder TestServer.test_connected",
    },
    "SUBSCRIBE / UNSUBSCRIBE": {
        "rights": """clauses TestSubscribe.test_a_withdrawal_sends_nothing_and_keeps_the_slot
            TestSubscribe.test_a_right_is_checked_again_when_a_value_is_written
            TestSubscribe.test_eager_owes_nothing_without_the_right TestSubscribe.test_a_grant_is_owed_to_durable_and_eager_ones
            broker test_rights_filter_delivery_and_a_subscribe_is_never_refused
            test_a_withdrawn_right_is_forgotten_when_written_and_a_granted_one_is_owed policy test_can_receive_any""",
        "order": """clauses TestSubscribe.test_a_durable_subscribe_takes_its_place_too
            broker test_a_subscribe_takes_its_place_among_racing_sends""",
        "`ack`": """clauses TestSubscribe.test_ack_modes TestFrames.test_frames_that_end_the_connection
            protocol TestSubscribe.test_ack_modes TestSubscribe.test_event""",
        "`eager:true`": """clauses TestSubscribe.test_eager_on_resume_overtakes_no_acknowledgement
            TestSubscribe.test_an_eager_scan_does_not_repeat_what_came_by_itself
            broker test_eager_delivers_every_current_value_and_no_deleted_topic
            test_an_eager_scan_in_slices_has_no_gap_and_no_double test_a_subscribe_takes_its_place_among_racing_sends""",
        "neither eager nor owed": "broker test_without_eager_only_later_updates_come",
        "`durable:true`": """clauses TestSubscribe.test_resuming_may_change_ack_and_options
            TestSubscribe.test_a_receipt_of_a_transient_subscribe_has_no_result TestSubscribe.test_a_paused_id_needs_durable
            TestSubscribe.test_a_replaced_subscription_collects_nothing_more
            TestSubscribe.test_a_disk_without_room_leaves_no_durable_subscription
            broker test_a_durable_subscription_resumes_with_what_changed_since test_same_id_with_another_destination_replaces
            test_resuming_without_durable_is_an_error test_durable_and_eager_on_resume_gives_all_values_and_owed_deletes
            test_durable_ids_can_be_reused_in_one_batch""",
        "duplicate id on a live subscription": "broker test_a_duplicate_id_on_a_live_subscription_is_an_error",
        "UNSUBSCRIBE": """clauses TestSubscribe.test_unsubscribe_of_a_transient_subscription
            TestSubscribe.test_a_paused_id_needs_durable protocol TestSubscribe.test_unsubscribe
            broker test_unsubscribe_of_a_durable_subscription test_unsubscribe_frees_window_slots
            test_unsubscribe_of_an_unknown_id_is_no_error""",
        "expiry": """clauses TestSubscribe.test_expiry_counts_from_the_disconnect
            broker test_sessions_with_durable_subscriptions_expire test_caps_on_sessions_and_subscriptions
            test_a_transient_subscription_ends_with_its_connection""",
    },
    "Delivery": {
        "1": """broker test_an_accepted_change_has_the_next_revision_and_message_id_is_it
            test_recovery_owes_exactly_what_was_not_acknowledged""",
        "2": "broker test_one_message_of_a_topic_is_unacked_and_newer_values_conflate",
        "3": """clauses TestConnect.test_window TestDelivery.test_window_doubles_when_no_ack_comes
            TestDelivery.test_stall_is_four_round_trips
            window test_a_slow_consumer_on_a_near_link_has_few_in_flight test_idle_samples_do_not_shrink_it
            test_the_rate_on_a_far_link_is_that_of_a_fixed_window test_floor_and_limit_hold
            test_a_consumer_that_acks_in_batches_never_stalls
            broker test_the_window_holds_back_every_subscription_of_the_connection
            test_a_client_that_acks_every_fiftieth_message_never_stalls""",
        "4": """broker test_ready_topics_are_served_oldest_owed_first_and_a_new_value_does_not_move_one
            test_a_topic_rearmed_by_an_ack_goes_to_the_tail test_subscriptions_of_a_connection_take_turns""",
        "5": "clauses TestDelivery.test_values_are_read_when_they_are_written",
        "6": """clauses TestDelivery.test_never_older_after_newer TestSubscribe.test_a_right_is_checked_again_when_a_value_is_written
            broker test_an_eager_scan_in_slices_has_no_gap_and_no_double test_a_subscribe_takes_its_place_among_racing_sends""",
        "7": "clauses TestDelivery.test_a_dead_subscriber_costs_what_it_is_owed_only",
        "8": """clauses TestDelivery.test_ack_is_what_message_says TestDelivery.test_an_ack_that_names_no_message_is_ignored
            TestDelivery.test_topics_that_one_ack_covers_are_served_in_the_order_of_sending
            protocol TestAck.test_1_2 TestAck.test_1_1 encoder TestServer.test_message TestClient.test_ack
            broker test_ack_is_cumulative_in_the_order_of_sending_not_of_revisions
            test_an_unknown_or_repeated_ack_is_ignored test_an_ack_is_resolved_only_within_its_own_connection""",
        "9": """clauses TestDelivery.test_unacked_of_a_transient_subscription_is_dropped
            TestSubscribe.test_eager_on_resume_overtakes_no_acknowledgement
            broker test_an_ack_with_receipt_on_a_durable_subscription_waits_for_its_commit
            test_acks_without_receipt_are_recorded_within_the_delay test_auto_values_handed_out_but_not_written_are_owed_again
            test_unacked_messages_become_owed_again_for_durable_subscriptions
            test_recovery_owes_exactly_what_was_not_acknowledged""",
        "10": "broker test_identical_values_and_own_sends_are_updates test_overlapping_subscriptions_each_get_their_copy",
    },
    "SEND": {
        "order of checks": """clauses TestSend.test_disposition TestFrames.test_frames_that_end_the_connection
            broker test_send_without_right_is_rejected_before_it_is_found_invalid""",
        "disposition": """clauses TestSend.test_disposition TestSend.test_without_a_receipt_a_rejection_is_counted
            rule test_a_mismatch_tells_field_expected_found_and_schema test_a_reason_is_one_printable_line_of_bounded_length""",
        "cannot store now": """clauses TestSend.test_memory_low
            broker test_a_full_disk_refuses_sends_and_gives_their_revisions_back process test_a_full_disk_refuses_and_recovers""",
        "accepted means": "broker test_nothing_leaves_before_its_commit process test_accepted_values_survive_a_kill",
        "delete": """clauses TestConditions.test_an_empty_delete_says_whose_it_is TestSend.test_delete TestSend.test_delete_needs_the_send_right_but_no_rule
            TestSend.test_a_delete_is_conflated_like_any_value rule test_an_envelope_deletes_by_tombstone
            broker test_a_delete_is_an_empty_message_and_an_absent_topic_notifies_nobody
            test_a_durable_subscription_resumes_with_what_changed_since""",
        "user headers": """clauses TestSend.test_user_headers_are_stored_with_the_value
            protocol TestSend.test_user_headers TestSend.test_reserved_headers_are_dropped""",
        "destination without a schema rule": """clauses TestSend.test_disposition TestSend.test_a_rule_may_accept_anything
            rule test_without_a_check_everything_is_accepted""",
    },
    "Extensions of ours": {
        "`source` + `source-revision`": """clauses TestConditions.test_a_source_never_goes_back TestConditions.test_a_takeover_keeps_marks
            TestConditions.test_a_topic_keeps_the_marks_of_four_sources TestConditions.test_deletes_keep_marks
            TestConditions.test_marks_of_a_deleted_topic_end TestConditions.test_marks_count_as_topics
            TestConditions.test_superseded_waits_for_what_it_was_compared_with TestConditions.test_marks_travel_on
            TestConditions.test_a_bad_condition TestConditions.test_a_source_without_a_number_is_a_user_header
            TestConditions.test_conditions_come_last_and_the_source_first
            protocol TestSend.test_conditions marks test_a_snapshot_keeps_what_the_changes_do
            delivery test_directed_histories_agree_with_the_model test_all_short_histories_of_conditions
            client test_a_source_may_repeat_itself""",
        "`if-revision`": """clauses TestConditions.test_if_revision TestConditions.test_if_revision_sees_what_is_not_committed
            TestConditions.test_a_conflict_tells_the_revision_to_receivers_only TestConditions.test_a_refused_change_takes_its_answers_along
            protocol TestSend.test_conditions client test_only_the_value_that_is_known_is_changed""",
    },
    "DISCONNECT": {
        "DISCONNECT": """clauses TestDisconnect.test_it_waits_for_commits_as_long_as_for_a_write
            TestDisconnect.test_without_a_receipt_it_ends_silently TestDisconnect.test_unacked_count_as_at_a_disconnect
            TestDisconnect.test_a_connection_that_breaks_loses_no_send protocol TestEnd.test_disconnect
            broker test_disconnect_completes_what_was_received_and_its_receipt_is_last
            connection test_a_client_that_reads_nothing_meets_the_write_deadline""",
    },
}


def named_tests() -> Iterator[tuple[str, str, str]]:
    """Yield (row, file, test) for each name in ROWS."""
    for section, rows in ROWS.items():
        for row, names in rows.items():
            file = ""
            for name in names.split():
                if name in FILES:
                    file = FILES[name]
                else:
                    yield f"{section}: {row}", file, name


@cache
def contents_of(file: str) -> frozenset[str]:
    """Return the names of the tests in a file, with their class."""
    found = set()
    for node in ast.parse((ROOT / "tests" / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{test.name}" for test in node.body if isinstance(test, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return frozenset(name for name in found if name.split(".")[-1].startswith("test_"))


class TestRows:
    """The table."""

    def test_named_tests_exist(self) -> None:
        """Each test that a row names is there."""
        assert [found for found in named_tests() if found[2] not in contents_of(found[1])] == []

    def test_every_row_has_tests(self) -> None:
        """No row is without a test."""
        assert all(
            any(name not in FILES for name in names.split()) for rows in ROWS.values() for names in rows.values()
        )

    def test_every_clause_belongs_to_a_row(self) -> None:
        """Each test of the clauses is named by a row, so that none is forgotten when a row changes."""
        named = {test for _, file, test in named_tests() if file == FILES["clauses"]}
        assert contents_of(FILES["clauses"]) == named

    @beside
    def test_every_row_of_the_decisions_is_named(self) -> None:
        """The sections and rows of ROWS are those of the decisions."""
        found: dict[str, list[str]] = {}
        for title, text in re.findall(
            r"^## (.*?)\n(.*?)(?=^## |\Z)", (SHARED / "design/protocol.md").read_text(), re.MULTILINE | re.DOTALL
        ):
            section = re.sub(r" \(.*", "", title)
            rows = [row for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) if row != "point"]
            found[section] = rows or re.findall(r"^(\d+)\. ", text, re.MULTILINE)
        extensions = [row for row in ROWS if row == "Extensions of ours"]
        found |= {section: list(ROWS[section]) for section in extensions}  # prose, of which a part is built
        found["Destinations"] = ["destination", "globs"]  # prose
        found["DISCONNECT"] = ["DISCONNECT"]
        assert found == {section: list(rows) for section, rows in ROWS.items()}


# The examples of the page.

EXAMPLES = re.findall(r"^```stomp(-session)? (client|server)(?: (1\.1))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
VERSIONS = {"": VERSION_1_2, "1.1": VERSION_1_1}


def wire(example: str) -> bytes:
    """Return what an example stands for: the line end behind a frame is there for the reader only."""
    return re.sub(r"\^@\n(?=[A-Z]|\Z)", "^@", example).replace("^@", "\0").encode()


def client_events(data: bytes, version: int) -> list[Event]:
    """Return what the server reads in `data`."""
    protocol = Protocol(Limits())
    if not data.startswith((b"CONNECT", b"STOMP")):
        protocol.receive_data(encoder.connect("MAXVAPI", (version,)))
    return protocol.receive_data(data)


def encoded(frame: Frame, version: int) -> bytes:
    """Write a server's frame with the encoder."""
    headers = dict(frame.headers)
    if frame.command == b"CONNECTED":
        can, _, wants = headers[b"heart-beat"].partition(b",")
        beat = (int(can), int(wants))
        return encoder.connected(version, headers[b"session"].decode(), beat, headers[b"server"].decode())
    if frame.command == b"RECEIPT":
        return encoder.receipt(version, headers.pop(b"receipt-id"), tuple(headers.items()))
    del headers[b"content-length"]
    if frame.command == b"ERROR":
        receipt = headers.pop(b"receipt-id", None)
        message = headers.pop(b"message").decode()
        assert headers.pop(b"content-type") == b"text/plain"
        return encoder.error(version, ProtocolError(message, frame.body.decode(), receipt, tuple(headers.items())))
    acknowledged = headers.pop(b"ack", None) is not None
    prefix = encoder.message_prefix(version, headers.pop(b"subscription"), acknowledged)
    destination, revision = headers.pop(b"destination"), int(headers.pop(b"message-id"))
    shared = encoder.message_shared(
        version, acknowledged, destination, revision, *pack(tuple(headers.items()), frame.body)
    )
    return prefix + shared


class TestExamples:
    """The literal frames of docs/protocol.md."""

    def test_there_are_some(self) -> None:
        """Every frame of either side but heart-beats is shown at least once."""
        shown = {line for *_, text in EXAMPLES for line in text.split("\n") if line.isupper()}
        assert shown >= {
            *("CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "DISCONNECT"),
            *("CONNECTED", "MESSAGE", "RECEIPT", "ERROR"),
        }

    @pytest.mark.parametrize(("side", "version", "text"), [example[1:] for example in EXAMPLES])
    def test_it_is_real(self, side: str, version: str, text: str) -> None:
        """What clients send is read without error, and what the broker sends is what its encoder writes."""
        data = wire(text)
        if side == "client":
            events = client_events(data, VERSIONS[version])
            assert events
            assert not any(isinstance(event, Failure) for event in events)
        else:
            frames = list(Decoder(Limits(), SERVER_COMMANDS, VERSIONS[version]).feed(data))
            assert frames
            assert b"".join([encoded(frame, VERSIONS[version]) for frame in frames]) == data

    def test_the_session_happens_as_shown(self) -> None:
        """The broker answers the first example with exactly the bytes shown."""
        world = World.make()
        client = world.client(connect=False)
        played = [(side, wire(text)) for kind, side, _, text in EXAMPLES if kind]
        assert len(played) == 6
        for side, data in played:
            if side == "client":
                client.write(data)
                world.settle()
            else:
                answer = b""
                while parts := client.peer.data_to_send(world.now_s):
                    answer += b"".join(parts)
                assert answer == data.replace(b"maxam/0.1.0", f"maxam/{__version__}".encode())
        assert client.peer.finished

    def test_the_rejection_shown_is_the_one_sent(self) -> None:
        """The example of a SEND that its schema does not allow is answered as shown, by the schemas in the repository."""
        files = [path for path in (ROOT / "schemas").rglob("*") if path.suffix in {".toml", ".avsc", ".lock"}]
        schemas = {path.relative_to(ROOT / "schemas").as_posix(): path.read_bytes() for path in files}
        world = World.make(schemas=schemas, anna={"send": ["X/**"], "receive": []})
        client = world.client()
        at, sent = next((at, wire(text)) for at, (*_, text) in enumerate(EXAMPLES) if "receipt:m-17" in text)
        client.write(sent)
        assert b"".join(client.peer.data_to_send(world.now_s)) == wire(EXAMPLES[at + 1][-1])

    def test_the_error_shown_is_the_one_sent(self) -> None:
        """The ERROR in the page has the very text of the program."""
        (event,) = Protocol(Limits()).receive_data(b"CONNECT\naccept-version:1.0\nhost:MAXVAPI\n\n\0")
        assert isinstance(event, Failure)
        assert encoder.error(VERSION_1_2, event.error) in [wire(text) for *_, text in EXAMPLES]

    def test_accepted_versions(self) -> None:
        """The example of 1.1 negotiates 1.1."""
        (example,) = [wire(text) for *_, text in EXAMPLES if text.startswith("STOMP")]
        (event,) = client_events(example, VERSION_1_1)
        assert isinstance(event, Connect)
        assert event.version == VERSION_1_1


def table(section: str, header: str) -> list[list[str]]:
    """Return the cells of the table of the page with this header line, without backticks."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0].partition(f"\n| {header} |\n")[2]
    rows = text.partition("\n\n")[0].strip().split("\n")[1:]
    return [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def sources(*folders: str) -> str:
    """Return the source text of the modules in these folders of the package."""
    files = [path for folder in folders for path in sorted((PACKAGE / folder).glob("*.py"))]
    return "\n".join(path.read_text() for path in files if path.name != "answers.py")  # a client's reader


class TestTables:
    """What the page says in tables is what the program does."""

    def test_limits(self) -> None:
        """Every limit in the page has the default that the page says."""
        rows = table("Limits", "limit | default | of what, and what happens")
        assert len(rows) > 15
        assert {name: float(getattr(Limits(), name)) for name, *_ in rows} == {
            name: float(value) for name, value, _ in rows
        }

    def test_result_codes(self) -> None:
        """The table of results is closed: the program has these and no others."""
        text = sources("broker", "avro", "gateway")
        codes = re.findall(
            r'Rejection\("([a-z-]+)"|_(?:rejection|misshapen)\(\s*"([a-z-]+)"|_unknown\(\s*"([a-z-]+)", "([a-z-]+)"|\(b"result", b"([a-z-]+)"\)',
            text,
        )
        assert {code for found in codes for code in found if code} == {
            row[0] for row in table("Result codes", "`result` | on | means")
        }
        rejections = [row[0] for row in table("Result codes", "`result` | on | means") if "rejected-" in row[1]]
        assert list(REJECTION_RESULTS) == rejections

    def test_messages_of_errors(self) -> None:
        """The table of `message` texts is complete, and each of them exists."""
        text = sources("stomp", "broker", "gateway", "admin")
        found = re.findall(r'(?:ProtocolError|_refuse|_refusal)\(\s*(?:frame,\s*)?f?"([^"]+)"', text)
        found += re.findall(r'^TAKEOVER: Final = "([^"]+)"', text, re.MULTILINE)
        patterns = {re.sub(r"\\{.*?\\}", "[a-z]+", re.escape(message)) for message in found}
        listed = [row[0] for row in table("ERROR", "`message` | when")]
        assert len(listed) == len(set(listed))
        assert [m for m in listed if not any(re.fullmatch(p, m) for p in patterns)] == []
        assert [p for p in patterns if not any(re.fullmatch(p, m) for m in listed)] == []

    def test_dropped_headers(self) -> None:
        """The header names that the page says are dropped are dropped, and no others."""
        names = re.findall(r"`([a-z-]+)`", PAGE.partition("only the broker says: ")[2].partition("\n\n")[0])
        assert len(names) == 15
        lines = "".join(f"{name}:1\n" for name in names if name not in {"transaction", "content-length", "destination"})
        (event,) = client_events(f"SEND\ndestination:X/a\n{lines}source:s\n\nbody\0".encode(), VERSION_1_2)
        assert getattr(event, "headers", None) == ((b"source", b"s"),)

    def test_links(self) -> None:
        """Every link within the page has its section, and every section is in the contents."""
        sections = {title.lower().replace(" ", "-").strip() for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)}
        assert set(re.findall(r"\]\(#([a-z-]+)\)", PAGE)) == sections

    def test_heart_beats_cannot_be_set_below_ten_seconds(self) -> None:
        """Spec: MaXaM "intervals of not less than 10000 (ms) in its CONNECTED response"."""
        minimal = '[tls]\ncertificate="c"\nkey="k"\nclient_ca="a"\n[policy]\nfile="p"\n[schemas]\nfolder="s"\n'
        tomllib.loads(minimal)
        with pytest.raises(Exception, match="10000 to"):
            load_settings(minimal + "[listener]\nheart_beat_ms = 9999\n", "t", Path())
        assert load_settings(minimal, "t", Path()).listener.heart_beat_ms == 10_000


# Quotations of the specifications.

SPECIFICATIONS = {
    "STOMP 1.1": "stomp-1.1.md",
    "STOMP 1.2": "stomp-1.2.md",
    "MaXaM": "maxam-stomp-usage.txt",
}


def plain(text: str) -> str:
    """Take away what is layout: table bars, bullets, backticks, and how much white space there is."""
    text = re.sub(r"^\s*(?:\*|#+|\d\.) ", " ", text, flags=re.MULTILINE)
    return " ".join(text.replace("|", " ").replace("`", "").split())


def quotations() -> Iterator[tuple[str, str, str]]:
    """Yield (place, specification, quotation) for each in the package and in the tests of protocol and broker."""
    names = "|".join(map(re.escape, SPECIFICATIONS))
    for path in [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]:
        text = re.sub(r"\n[ \t]*# (?!Spec:)", " ", path.read_text())  # comments of several lines
        for at in re.finditer(rf"Spec: ({names})([^\n]*)", text):
            rest = at[2].replace('"""', '"')
            for quoted in re.findall(r"'(\"?[^'\n]*)'|\"((?:[^\"\n]|(?<=[ (])\"[\w:,-]+\")+)\"", rest):
                yield str(path), at[1], quoted[0] or quoted[1]


@beside
def test_quotations_are_true() -> None:
    """Each quotation after `Spec:` is in that specification, word for word but for what `[...]` stands for."""
    texts = {name: plain((SHARED / "spec" / file).read_text()) for name, file in SPECIFICATIONS.items()}
    found = list(quotations())
    assert len(found) > 60
    wrong = []
    for place, name, quotation in found:
        parts = [re.escape(plain(part)) for part in quotation.split("[...]")]
        if re.search(".{0,400}?".join(parts), texts[name]) is None:
            wrong.append(f"{place}: {name} {quotation!r}")
    assert wrong == []
