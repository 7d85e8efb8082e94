/* See cuda_runtime_api.h. */
#pragma once
#include "cuda_runtime_api.h"
typedef unsigned long long CUdeviceptr;
typedef int CUresult;
typedef int CUdevice;
