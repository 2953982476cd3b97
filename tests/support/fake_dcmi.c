// A libdcmi for tests: two 310P chips on card 2, or one 310B, or one 910B, as FAKE_DCMI_CHIP says (default 310p).
// FAKE_DCMI_FAIL="function:code,…" lets calls fail, FAKE_DCMI_HANG=function lets one never return, and
// FAKE_DCMI_CELSIUS sets the chips' temperature. Built without the functions named by -DWITHOUT_….
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int chip_is(const char *name) {
    const char *chip = getenv("FAKE_DCMI_CHIP");
    return strcmp(chip ? chip : "310p", name) == 0;
}

static int before(const char *function) {
    const char *hang = getenv("FAKE_DCMI_HANG"), *fail = getenv("FAKE_DCMI_FAIL");
    while (hang && strcmp(hang, function) == 0) pause();
    const char *found = fail ? strstr(fail, function) : NULL;
    return found && found[strlen(function)] == ':' ? atoi(found + strlen(function) + 1) : 0;
}

#define BEGIN(function) do { int code = before(function); if (code) return code; } while (0)

int dcmi_init(void) { BEGIN("dcmi_init"); return 0; }

int dcmi_get_card_list(int *count, int *ids, int length) {
    BEGIN("dcmi_get_card_list");
    *count = 1;
    if (length > 0) ids[0] = chip_is("310p") ? 2 : 0;
    return 0;
}

int dcmi_get_device_id_in_card(int card, int *chips, int *mcu, int *cpu) {
    BEGIN("dcmi_get_device_id_in_card");
    *chips = chip_is("310p") ? 2 : 1;
    *mcu = chip_is("310b") ? -1 : *chips;
    *cpu = -1;
    return 0;
}

int dcmi_get_device_logic_id(int *id, int card, int chip) {
    BEGIN("dcmi_get_device_logic_id");
    *id = chip;
    return 0;
}

int dcmi_get_device_temperature(int card, int device, int *celsius) {
    BEGIN("dcmi_get_device_temperature");
    const char *set = getenv("FAKE_DCMI_CELSIUS");
    if (device == (chip_is("310p") ? 2 : 1)) *celsius = chip_is("910b") ? 0x7ffd : 41;
    else *celsius = set ? atoi(set) : 60 + device;
    return 0;
}

int dcmi_get_device_power_info(int card, int chip, int *tenths) {
    BEGIN("dcmi_get_device_power_info");
    if (chip_is("310p")) return -8255;
    *tenths = chip_is("910b") ? 936 : 104;
    return 0;
}

int dcmi_mcu_get_power_info(int card, int *tenths) {
    BEGIN("dcmi_mcu_get_power_info");
    if (!chip_is("310p")) return -8255;
    *tenths = 615;
    return 0;
}

int dcmi_get_device_utilization_rate(int card, int chip, int kind, unsigned *percent) {
    BEGIN("dcmi_get_device_utilization_rate");
    if (kind == 10 && !chip_is("910b")) return -8255;
    *percent = kind == 2 ? 96 : kind == 10 ? 57 : kind == 5 ? 33 : 0;
    return 0;
}

int dcmi_get_device_frequency(int card, int chip, int kind, unsigned *mhz) {
    BEGIN("dcmi_get_device_frequency");
    if (kind != 7 && kind != 9) return -8255;
    *mhz = kind == 7 ? 500 : 1000;
    return 0;
}

#ifndef WITHOUT_AICORE_INFO
struct aicore_info { unsigned freq, cur_freq; };
int dcmi_get_device_aicore_info(int card, int chip, struct aicore_info *info) {
    BEGIN("dcmi_get_device_aicore_info");
    info->freq = 1080;
    info->cur_freq = 960;
    return 0;
}
#endif

struct memory_info {
    unsigned long long size, available;
    unsigned freq;
    unsigned long page, pages, free_pages;
    unsigned utilization;
    unsigned char reserve[60];
};
int dcmi_get_device_memory_info_v3(int card, int chip, struct memory_info *info) {
    BEGIN("dcmi_get_device_memory_info_v3");
    if (chip_is("910b")) return -8255;
    memset(info, 0, sizeof *info);
    info->size = 44280;
    info->available = 42751;
    return 0;
}

struct hbm_info {
    unsigned long long size;
    unsigned freq;
    unsigned long long usage;
    int temperature;
    unsigned bandwidth;
};
int dcmi_get_device_hbm_info(int card, int chip, struct hbm_info *info) {
    BEGIN("dcmi_get_device_hbm_info");
    if (!chip_is("910b")) return -8255;
    memset(info, 0, sizeof *info);
    info->size = 65536;
    info->usage = 20701;
    info->temperature = 71;
    return 0;
}

int dcmi_get_device_health(int card, int chip, unsigned *health) {
    BEGIN("dcmi_get_device_health");
    *health = chip_is("310b") ? 0xFFFFFFFFu : 2;
    return 0;
}

int dcmi_get_device_errorcode_v2(int card, int chip, int *count, unsigned *codes, unsigned length) {
    BEGIN("dcmi_get_device_errorcode_v2");
    *count = 2;
    codes[0] = 0x80E20207;
    codes[1] = 0x80DE0207;
    return 0;
}

#ifndef WITHOUT_SENSOR_INFO
int dcmi_get_device_sensor_info(int card, int chip, int sensor, signed char *temperatures) {
    BEGIN("dcmi_get_device_sensor_info");
    if (sensor != 9) return -8255;
    temperatures[0] = 95;
    temperatures[1] = 115;
    return 0;
}
#endif

int dcmi_get_device_info(int card, int chip, int main_command, unsigned sub_command, void *buffer, unsigned *size) {
    BEGIN("dcmi_get_device_info");
    if (main_command != 8 || sub_command != 9 || *size != 8) return -8255;
    unsigned long long causes = 1ull << 2 | 1ull << 10;
    memcpy(buffer, &causes, 8);
    return 0;
}
