"""Code from loop kernels: `Codegen` turns `Loop` into `Program` (torch-free), `load` turns a `Unit` into a callable."""

from codegen.load import load as load
from codegen.load import prepare as prepare
from codegen.load import random_threads as random_threads
from codegen.load import why_not_recorded as why_not_recorded
from codegen.replay import Replay as Replay
from codegen.stage import Codegen as Codegen
from codegen.stage import Options as Options
