// Definition of zo_dataset.
#pragma once

#include "session/data/dataset.h"
#include "zoexport/session.h"

struct zo_dataset {
  zoexport::Dataset impl;
};
