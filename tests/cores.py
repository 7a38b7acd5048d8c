"""Which tests `deploy/test-cores` runs over one core only: the interpreted one, of the tree, or the compiled one, of a wheel.

Tests that call the core's functions run over both, except slow ones: those run over the compiled core. A test that starts a gateway
runs over the compiled core, as users have it. A test that runs no compiled code, or hardly any, runs over either. Where there is one
core only it has all tests.
"""

import os
from typing import Final, Literal

# Files, folders, and single tests by their ids; the longest one that fits counts.
ONLY: Final[dict[str, Literal["interpreted", "compiled", "both"]]] = {
    "tests/alerts/": "interpreted",  # Prometheus and its rules
    "tests/cluster/": "interpreted",  # etcd and its client
    "tests/conformance/": "interpreted",  # programs in TypeScript, which the copy of the other run does not have
    "tests/console/": "interpreted",
    "tests/console/test_console_topics.py": "compiled",  # topics under load
    "tests/deployment/": "interpreted",
    "tests/deployment/test_units.py": "compiled",  # a gateway without the right to write machine code
    "tests/docs/": "interpreted",
    "tests/docs/test_first_session.py": "compiled",
    "tests/docs/test_identity_guide.py": "compiled",
    "tests/docs/test_readme.py": "compiled",
    "tests/docs/test_resume_guide.py": "compiled",
    "tests/examples/": "interpreted",
    "tests/faults/": "compiled",
    "tests/faults/test_enrolment_kill.py": "interpreted",  # files of certificates
    "tests/fuzz/": "compiled",
    "tests/interop/": "compiled",
    "tests/interop/test_bench_brokers.py": "interpreted",  # other brokers
    "tests/interop/test_confluent_client.py": "interpreted",  # the admin API
    "tests/interop/test_web_clients.py": "interpreted",  # as above: @maxam/client
    "tests/pipeline/": "interpreted",
    # These read and write journals.
    "tests/pipeline/test_cluster.py": "compiled",
    "tests/pipeline/test_generator.py": "compiled",
    "tests/pipeline/test_history.py": "compiled",
    "tests/pipeline/test_reading.py": "compiled",
    "tests/pipeline/test_stream.py": "compiled",
    "tests/properties/api/": "compiled",
    "tests/properties/broker/test_delivery.py": "compiled",  # all short histories
    "tests/properties/client/": "compiled",
    "tests/properties/client/test_typescript_live_values.py": "interpreted",  # as tests/conformance/
    "tests/properties/cluster/": "compiled",
    "tests/prose/": "interpreted",
    # Some seeds of each simulation run interpreted. Each mutant runs once: `each_of` of tests/simulation/judging.py divides them.
    "tests/simulation/": "compiled",
    "tests/simulation/test_bridges.py::test_what_bridges_promise_holds_whatever_fails[0]": "interpreted",
    "tests/simulation/test_cluster.py::test_what_a_cluster_promises_holds_whatever_fails[0]": "interpreted",
    "tests/simulation/test_cluster_venue.py::test_what_a_cluster_promises_its_clients_holds_whatever_fails[0]": "interpreted",
    "tests/simulation/test_cluster_venue.py::test_a_mutant_is_caught": "both",
    "tests/simulation/test_fronts.py::test_what_clients_are_promised_holds_whatever_fails[1]": "interpreted",
    "tests/simulation/test_fronts.py::test_a_mutant_is_caught": "both",
    "tests/simulation/test_late_routes.py": "interpreted",  # replaces constants
    "tests/simulation/test_simulation.py::test_what_must_hold_holds_whatever_fails[0]": "interpreted",
    "tests/simulation/test_simulation.py::test_what_must_hold_holds_with_room_ahead[160]": "interpreted",
    "tests/simulation/test_simulation.py::test_a_mutant_is_caught": "both",
    "tests/soak/": "compiled",
    "tests/streams/": "compiled",
    "tests/streams/api/test_journal_admin.py": "interpreted",
    "tests/streams/api/test_routes.py": "interpreted",
    "tests/streams/cli/test_cli.py": "interpreted",
    "tests/streams/enrolment/": "interpreted",
    "tests/unit/api/": "compiled",
    "tests/unit/api/test_answers.py": "interpreted",
    "tests/unit/api/test_api.py": "interpreted",
    "tests/unit/api/test_browsers.py": "interpreted",
    "tests/unit/api/test_registry_api.py": "interpreted",
    "tests/unit/avro/test_values.py": "interpreted",
    "tests/unit/bench/": "interpreted",
    "tests/unit/bridge/": "compiled",
    "tests/unit/cli/": "interpreted",
    "tests/unit/client/": "compiled",
    "tests/unit/cluster/": "compiled",
    "tests/unit/cluster/test_entry.py": "both",
    "tests/unit/conformance/": "interpreted",
    "tests/unit/demo/": "compiled",
    "tests/unit/enrolment/": "interpreted",
    "tests/unit/failover/": "interpreted",
    "tests/unit/front/": "compiled",
    "tests/unit/front/test_codecs.py": "both",
    "tests/unit/front/test_order.py": "both",
    "tests/unit/gateway/": "compiled",
    "tests/unit/gateway/test_commit.py": "both",
    "tests/unit/gateway/test_holdings_watch.py": "both",
    "tests/unit/gateway/test_peer.py": "both",
    "tests/unit/gateway/test_protocol_clauses.py": "both",
    "tests/unit/gateway/test_unrefined_clients.py": "both",
    "tests/unit/journal/": "compiled",
    "tests/unit/journal/test_encoding.py": "both",
    "tests/unit/journal/test_files.py": "both",
    "tests/unit/journal/test_format.py": "both",
    "tests/unit/journal/test_newest_changes.py": "both",
    "tests/unit/journal/test_releases.py": "both",
    "tests/unit/journal/test_splice.py": "both",
    "tests/unit/pipeline/": "interpreted",
    "tests/unit/pki/": "interpreted",
    "tests/unit/schema_tools/": "interpreted",
    "tests/unit/terminal/": "interpreted",
    "tests/unit/test_exit_codes.py": "interpreted",
    "tests/unit/test_extras.py": "interpreted",
    "tests/unit/test_first_run.py": "interpreted",  # make
    "tests/unit/test_house.py": "interpreted",  # reads the tree
    "tests/unit/test_mutants.py": "interpreted",
    "tests/web/": "interpreted",  # as above
}


def is_left_to_the_other(nodeid: str, core: str, *, slow: bool = False) -> bool:
    """Return True if both cores are tested now and a test of that id runs over the other one only."""
    if "BOTH_CORES" not in os.environ:
        return False
    fitting = max((name for name in ONLY if nodeid.startswith(name)), key=len, default="")
    only = ONLY.get(fitting, "both")
    return slow and core != "compiled" if only == "both" else core != only


def is_left_out(path: str, core: str) -> bool:
    """Return True if the other core has all tests of a file or folder, so that this run need not import it."""
    return is_left_to_the_other(path, core) and not any(name.startswith(path) and name != path for name in ONLY)
