"""The mutants of the simulation quote source text: a change of the text is noticed here, in seconds."""

from pathlib import Path

from tests.simulation.ahead_mutants import AHEAD_MUTANTS
from tests.simulation.attendance_mutants import ATTENDANCE_MUTANTS
from tests.simulation.bridge_mutants import BRIDGE_MUTANTS
from tests.simulation.cluster_mutants import CLUSTER_MUTANTS
from tests.simulation.cluster_venue_mutants import CLUSTER_VENUE_MUTANTS
from tests.simulation.fronts_mutants import FRONTS_MUTANTS, OUTLIVING_MUTANTS
from tests.simulation.json_mutants import JSON_MUTANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.refined_mutants import REFINED_MUTANTS


def test_each_mutant_quotes_a_text_that_is_there() -> None:
    """Each mutant that can be applied here has its text in the module that it changes."""
    mutants = (
        *MUTANTS,
        *REFINED_MUTANTS,
        *ATTENDANCE_MUTANTS,
        *JSON_MUTANTS,
        *AHEAD_MUTANTS,
        *BRIDGE_MUTANTS,
        *CLUSTER_MUTANTS,
        *CLUSTER_VENUE_MUTANTS,
        *FRONTS_MUTANTS,
        *OUTLIVING_MUTANTS,
    )
    texts = {mutant.module: Path(str(mutant.module.__file__)).read_text() for mutant in mutants if not mutant.compiled}
    assert [mutant.name for mutant in mutants if not mutant.compiled and mutant.old not in texts[mutant.module]] == []
