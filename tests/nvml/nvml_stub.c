/* A stub of libnvidia-ml.so.1 that says what a scenario file says, so that the real pynvml meets real error codes.
 *
 * PINNER_NVML_SCENARIO names the file; tests/nvml/stub.py writes it and compiles this. Sections are [system] and
 * [gpu 0], [gpu 1], …; a line is `key = value`. A key that a GPU lacks is answered with "not supported". A line
 * `fail.FUNCTION = CODE` makes that function return the code, for one GPU or, in [system], always;
 * `hang.FUNCTION = 1` in [system] makes it never return, `crash.FUNCTION = 1` makes it end the process, and
 * `delay-us = N` is what each answer of a GPU takes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_LINES 4096
#define MOST_GPUS 64
#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TOO_SMALL 7

typedef struct {
  int section; /* -1: [system] */
  char key[96], value[512];
} Line;

/* Handles are addresses in here: whole GPUs, and MIG devices behind them. */
static char handles[MOST_GPUS], mig_handles[MOST_GPUS * 8];
static Line lines[MOST_LINES];
static int line_count = -1;

static void trim(char *text) {
  char *start = text + strspn(text, " \t");
  memmove(text, start, strlen(start) + 1);
  size_t length = strlen(text);
  while (length && strchr(" \t\r\n", text[length - 1])) text[--length] = 0;
}

static void load(void) {
  char row[640]; /* a longer line is cut */
  const char *path = getenv("PINNER_NVML_SCENARIO");
  FILE *file = path ? fopen(path, "r") : NULL;
  int section = -1;
  line_count = 0;
  while (file && fgets(row, sizeof row, file) && line_count < MOST_LINES) {
    char *equals = strchr(row, '=');
    trim(row);
    if (row[0] == '[') {
      section = sscanf(row, "[gpu %d]", &section) == 1 ? section : -1;
    } else if (equals && row[0] != '#') {
      Line *line = &lines[line_count++];
      *equals = 0;
      line->section = section;
      snprintf(line->key, sizeof line->key, "%.95s", row);
      snprintf(line->value, sizeof line->value, "%.511s", equals + 1);
      trim(line->key);
      trim(line->value);
    }
  }
  if (file) fclose(file);
}

static const char *find(int section, const char *key) {
  if (line_count < 0) load();
  for (int at = 0; at < line_count; at++)
    if (lines[at].section == section && !strcmp(lines[at].key, key)) return lines[at].value;
  return NULL;
}

static const char *find_for(int section, const char *what, const char *function) {
  char key[128];
  snprintf(key, sizeof key, "%s.%s", what, function);
  return find(section, key);
}

static int verdict(int section, const char *function) {
  const char *code;
  if (find_for(-1, "hang", function)) for (;;) pause();
  if (find_for(-1, "crash", function)) abort();
  if (section >= 0 && (code = find(-1, "delay-us"))) usleep((useconds_t)atoi(code));
  code = find_for(-1, "fail", function);
  if (!code && section >= 0) code = find_for(section, "fail", function);
  if (!code && section >= 0) code = find(section, "fail");
  return code ? atoi(code) : OK;
}

static int index_of(const void *handle) {
  const char *at = handle;
  if (at >= mig_handles && at < mig_handles + sizeof mig_handles) return (int)(at - mig_handles) / 8;
  return at >= handles && at < handles + MOST_GPUS ? (int)(at - handles) : -2;
}

static int text(int section, const char *function, const char *key, char *out, unsigned size) {
  int code = verdict(section, function);
  const char *value = find(section, key);
  if (code) return code;
  if (!value) return NOT_SUPPORTED;
  if (strlen(value) + 1 > size) return TOO_SMALL;
  strcpy(out, value);
  return OK;
}

static int number(int section, const char *function, const char *key, unsigned long long *out) {
  int code = verdict(section, function);
  const char *value = find(section, key);
  if (code) return code;
  if (!value) return NOT_SUPPORTED;
  *out = strtoull(value, NULL, 0);
  return OK;
}

#define UNSIGNED(function, key)                                          \
  int function(void *gpu, unsigned *out) {                               \
    unsigned long long value = 0;                                        \
    int code = number(index_of(gpu), #function, key, &value);            \
    if (!code) *out = (unsigned)value;                                   \
    return code;                                                         \
  }

#define TEXT(function, key) \
  int function(void *gpu, char *out, unsigned size) { return text(index_of(gpu), #function, key, out, size); }

#define BY_KIND(function, prefix)                                        \
  int function(void *gpu, int kind, unsigned *out) {                     \
    char key[64];                                                        \
    unsigned long long value = 0;                                        \
    snprintf(key, sizeof key, "%s-%d", prefix, kind);                    \
    int code = number(index_of(gpu), #function, key, &value);            \
    if (!code) *out = (unsigned)value;                                   \
    return code;                                                         \
  }

#define TWO(function, key)                                               \
  int function(void *gpu, unsigned *current, unsigned *pending) {        \
    unsigned long long value = 0;                                        \
    int code = number(index_of(gpu), #function, key, &value);            \
    if (!code) *current = *pending = (unsigned)value;                    \
    return code;                                                         \
  }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return verdict(-1, "nvmlInitWithFlags"); }
int nvmlInit_v2(void) { return verdict(-1, "nvmlInit_v2"); }
int nvmlShutdown(void) { return verdict(-1, "nvmlShutdown"); }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  return text(-1, "nvmlSystemGetDriverVersion", "driver", out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
  return text(-1, "nvmlSystemGetNVMLVersion", "nvml", out, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
  unsigned long long value = 0;
  int code = number(-1, "nvmlSystemGetCudaDriverVersion_v2", "cuda", &value);
  if (!code) *out = (int)value;
  return code;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
  unsigned long long value = 0;
  int code = number(-1, "nvmlDeviceGetCount_v2", "count", &value);
  if (!code) *out = (unsigned)value;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  int code = verdict((int)index, "nvmlDeviceGetHandleByIndex_v2");
  if (code) return code;
  if (index >= MOST_GPUS) return INVALID;
  *out = &handles[index];
  return OK;
}

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetSerial, "serial")

int nvmlDeviceGetUUID(void *gpu, char *out, unsigned size) {
  char key[32] = "uuid";
  if ((char *)gpu >= mig_handles && (char *)gpu < mig_handles + sizeof mig_handles)
    snprintf(key, sizeof key, "mig-uuid-%d", (int)((char *)gpu - mig_handles) % 8);
  return text(index_of(gpu), "nvmlDeviceGetUUID", key, out, size);
}

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *out) {
  memset(out, 0, sizeof *out);
  int code = text(index_of(gpu), "nvmlDeviceGetPciInfo_v3", "bus", out->bus_id, sizeof out->bus_id);
  if (!code) sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
  return code;
}

typedef struct {
  unsigned long long total, free, used;
} Memory;

int nvmlDeviceGetMemoryInfo(void *gpu, Memory *out) {
  memset(out, 0, sizeof *out);
  return number(index_of(gpu), "nvmlDeviceGetMemoryInfo", "memory", &out->total);
}

typedef struct {
  unsigned gpu, memory;
} Utilisation;

int nvmlDeviceGetUtilizationRates(void *gpu, Utilisation *out) {
  unsigned long long value = 0;
  int code = number(index_of(gpu), "nvmlDeviceGetUtilizationRates", "utilisation", &value);
  out->gpu = (unsigned)value;
  out->memory = 0;
  return code;
}

UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie-generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie-generation-max")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie-width")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie-width-max")
UNSIGNED(nvmlDeviceGetPowerManagementLimit, "power-limit-mw")
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, "power-default-mw")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power-enforced-mw")
UNSIGNED(nvmlDeviceGetPowerUsage, "power-mw")
UNSIGNED(nvmlDeviceGetPerformanceState, "pstate")
UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence")
UNSIGNED(nvmlDeviceGetComputeMode, "compute-mode")
UNSIGNED(nvmlDeviceGetVirtualizationMode, "virtualization")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig-count")
BY_KIND(nvmlDeviceGetClockInfo, "clock")
BY_KIND(nvmlDeviceGetMaxClockInfo, "clock-max")
BY_KIND(nvmlDeviceGetApplicationsClock, "clock-application")
BY_KIND(nvmlDeviceGetTemperature, "temperature")
TWO(nvmlDeviceGetEccMode, "ecc")
TWO(nvmlDeviceGetMigMode, "mig")

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, unsigned *out) {
  char key[32];
  unsigned long long value = 0;
  snprintf(key, sizeof key, "nvlink-%u", link);
  int code = number(index_of(gpu), "nvmlDeviceGetNvLinkState", key, &value);
  if (!code) *out = (unsigned)value;
  return code;
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, unsigned long long *out) {
  (void)counter;
  return number(index_of(gpu), "nvmlDeviceGetTotalEccErrors", kind ? "ecc-uncorrected" : "ecc-corrected", out);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *out) {
  return number(index_of(gpu), "nvmlDeviceGetCurrentClocksEventReasons", "reasons", out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *out) {
  return number(index_of(gpu), "nvmlDeviceGetCurrentClocksThrottleReasons", "reasons", out);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **out) {
  char key[32];
  int own = index_of(gpu), code = verdict(own, "nvmlDeviceGetMigDeviceHandleByIndex");
  snprintf(key, sizeof key, "mig-uuid-%u", index);
  if (code) return code;
  if (own < 0 || index >= 8 || !find(own, key)) return NOT_FOUND;
  *out = &mig_handles[own * 8 + (int)index];
  return OK;
}

/* `link-N = LEVEL` in the section of the GPU with the lower index; 50 (across sockets) otherwise. */
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *out) {
  int a = index_of(one), b = index_of(other), low = a < b ? a : b, high = a < b ? b : a;
  char key[32];
  int code = verdict(low, "nvmlDeviceGetTopologyCommonAncestor");
  snprintf(key, sizeof key, "link-%d", high);
  if (code) return code;
  const char *value = find(low, key);
  *out = value ? atoi(value) : 50;
  return OK;
}

typedef struct {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
} Process;

/* `processes = PID:BYTES PID:BYTES …` */
static int processes(int section, const char *function, const char *key, unsigned *count, Process *out) {
  int code = verdict(section, function);
  const char *at = find(section, key);
  unsigned room = *count, found = 0;
  if (code) return code;
  while (at && *at) {
    unsigned pid;
    unsigned long long memory;
    if (sscanf(at, "%u:%llu", &pid, &memory) != 2) break;
    if (found < room && out) {
      memset(&out[found], 0, sizeof *out);
      out[found].pid = pid;
      out[found].memory = memory;
    }
    found++;
    at = strchr(at, ' ');
    if (at) at++;
  }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *out) {
  return processes(index_of(gpu), "nvmlDeviceGetComputeRunningProcesses_v3", "processes", count, out);
}
