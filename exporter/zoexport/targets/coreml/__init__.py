"""Apple's Core ML: a multifunction package whose functions are the stages of a model, forward and backward."""

import logging

# coremltools says on every import which of its optional parts it could not load.
logging.getLogger("coremltools").setLevel(logging.CRITICAL)
