"""Which tests `deploy/test-cores` runs over one core only: the interpreted one, of the tree, or the compiled one, of a wheel.

Tests that call the core's functions run over both. A test that starts a gateway runs over the compiled core, as users have it. A test
that runs no compiled code, or hardly any, runs over the tree. Where there is one core only it has all tests.
"""

import os
from typing import Final, Literal

# Files, folders, and single tests by their ids; the longest one that fits counts.
ONLY: Final[dict[str, Literal["interpreted", "compiled"]]] = {
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
    "tests/interop/": "compiled",
    "tests/interop/test_bench_brokers.py": "interpreted",  # other brokers
    "tests/interop/test_confluent_client.py": "interpreted",  # the admin API
    "tests/interop/test_web_clients.py": "interpreted",  # as above: @maxam/client
    "tests/pipeline/": "interpreted",
    # These read and write journals.
    "tests/pipeline/test_cluster.py": "compiled",
    "tests/pipeline/test_cluster.py::test_workers_with_a_python_of_their_own_are_sent_maxam_alone": "interpreted",
    "tests/pipeline/test_generator.py": "compiled",
    "tests/pipeline/test_history.py": "compiled",
    "tests/pipeline/test_reading.py": "compiled",
    "tests/pipeline/test_stream.py": "compiled",
    "tests/properties/broker/test_delivery.py": "compiled",  # all short histories
    "tests/properties/client/test_typescript_live_values.py": "interpreted",  # as tests/conformance/
    "tests/prose/": "interpreted",
    "tests/soak/": "compiled",
    "tests/streams/": "compiled",
    "tests/streams/api/test_journal_admin.py": "interpreted",
    "tests/streams/api/test_routes.py": "interpreted",
    "tests/streams/cli/test_cli.py": "interpreted",
    "tests/streams/enrolment/": "interpreted",
    "tests/unit/api/test_answers.py": "interpreted",
    "tests/unit/api/test_api.py": "interpreted",
    "tests/unit/api/test_browsers.py": "interpreted",
    "tests/unit/api/test_registry_api.py": "interpreted",
    "tests/unit/avro/test_values.py": "interpreted",
    "tests/unit/bench/": "interpreted",
    "tests/unit/cli/test_output.py": "interpreted",
    "tests/unit/cli/test_repeating.py": "interpreted",
    "tests/unit/cli/test_watch.py": "interpreted",
    "tests/unit/pipeline/test_history_table.py": "interpreted",
    "tests/unit/pipeline/test_resolution.py": "interpreted",
    "tests/unit/pki/test_authority.py": "interpreted",
    "tests/unit/terminal/test_escaping.py": "interpreted",
    "tests/unit/test_exit_codes.py": "interpreted",
    "tests/unit/test_house.py": "interpreted",  # reads the tree
    "tests/unit/test_extras.py": "interpreted",
    "tests/unit/test_first_run.py": "interpreted",  # make
    "tests/web/": "interpreted",  # as above
}


def is_left_to_the_other(nodeid: str, core: str) -> bool:
    """Return True if both cores are tested now and a test of that id runs over the other one only."""
    if "BOTH_CORES" not in os.environ:
        return False
    fitting = max((name for name in ONLY if nodeid.startswith(name)), key=len, default="")
    return ONLY.get(fitting, core) != core
