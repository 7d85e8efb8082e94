from oomdoctor.errors import OomDoctorError as OomDoctorError
from oomdoctor.library.budget import Budget as Budget
from oomdoctor.library.estimate import Estimate as Estimate
from oomdoctor.library.estimate import estimate as estimate
from oomdoctor.library.preflight import Preflight as Preflight

__version__: str
