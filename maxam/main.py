"""Where the rooms are put together: the gateway with the admin listener beside it."""

from maxam.api.service import serve_admin
from maxam.enrolment.enrolment import check_enrolment
from maxam.gateway.main import command

gateway = command([serve_admin], [check_enrolment])
