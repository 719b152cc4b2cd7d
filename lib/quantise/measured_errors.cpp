// Of evidence/cpu/calibration.json; tests/quantise/modes_test.cpp compares them.
#include "quantise/modes.hpp"

namespace heed::quantise {
namespace {

constexpr MeasuredError kErrors[] = {
    {"int8", "normal", 1.2e-02},
    {"int8", "outliers", 7.5e-02},
    {"int8", "outlier_channel", 5.6e-01},
    {"int8", "channel_offsets", 4.6e-02},
    {"int8", "peaked", 3.3e-02},
    {"int8", "attention_sink", 2.0e-02},
    {"int8_smooth", "normal", 1.2e-02},
    {"int8_smooth", "outliers", 7.5e-02},
    {"int8_smooth", "outlier_channel", 4.3e-02},
    {"int8_smooth", "channel_offsets", 1.2e-02},
    {"int8_smooth", "peaked", 3.3e-02},
    {"int8_smooth", "attention_sink", 1.9e-02},
    {"int8_token_smooth", "normal", 9.1e-03},
    {"int8_token_smooth", "outliers", 5.7e-02},
    {"int8_token_smooth", "outlier_channel", 4.1e-02},
    {"int8_token_smooth", "channel_offsets", 9.1e-03},
    {"int8_token_smooth", "peaked", 2.5e-02},
    {"int8_token_smooth", "attention_sink", 1.5e-02},
    {"int8_fp8_smooth", "normal", 2.9e-02},
    {"int8_fp8_smooth", "outliers", 7.8e-02},
    {"int8_fp8_smooth", "outlier_channel", 5.0e-02},
    {"int8_fp8_smooth", "channel_offsets", 2.9e-02},
    {"int8_fp8_smooth", "peaked", 4.3e-02},
    {"int8_fp8_smooth", "attention_sink", 3.3e-02},
    {"fp8", "normal", 4.6e-02},
    {"fp8", "outliers", 1.3e-01},
    {"fp8", "outlier_channel", 1.0e+00},
    {"fp8", "channel_offsets", 1.6e-01},
    {"fp8", "peaked", 1.1e-01},
    {"fp8", "attention_sink", 6.9e-02},
    {"fp8_smooth", "normal", 4.7e-02},
    {"fp8_smooth", "outliers", 1.3e-01},
    {"fp8_smooth", "outlier_channel", 1.4e-01},
    {"fp8_smooth", "channel_offsets", 4.7e-02},
    {"fp8_smooth", "peaked", 1.1e-01},
    {"fp8_smooth", "attention_sink", 6.6e-02},
    {"fp8_rotated", "normal", 4.7e-02},
    {"fp8_rotated", "outliers", 1.1e-01},
    {"fp8_rotated", "outlier_channel", 9.4e-01},
    {"fp8_rotated", "channel_offsets", 1.6e-01},
    {"fp8_rotated", "peaked", 1.1e-01},
    {"fp8_rotated", "attention_sink", 7.2e-02},
    {"fp8_smooth_rotated", "normal", 4.6e-02},
    {"fp8_smooth_rotated", "outliers", 1.1e-01},
    {"fp8_smooth_rotated", "outlier_channel", 6.0e-02},
    {"fp8_smooth_rotated", "channel_offsets", 4.6e-02},
    {"fp8_smooth_rotated", "peaked", 1.0e-01},
    {"fp8_smooth_rotated", "attention_sink", 7.1e-02},
    {"fp8_block_smooth_rotated", "normal", 4.7e-02},
    {"fp8_block_smooth_rotated", "outliers", 1.2e-01},
    {"fp8_block_smooth_rotated", "outlier_channel", 6.2e-02},
    {"fp8_block_smooth_rotated", "channel_offsets", 4.7e-02},
    {"fp8_block_smooth_rotated", "peaked", 1.1e-01},
    {"fp8_block_smooth_rotated", "attention_sink", 7.7e-02},
};

}  // namespace

std::span<const MeasuredError> measured_errors() {
  return kErrors;
}

std::string_view measured_workload() {
  return "b1h4l1024d128:fp16";
}

}  // namespace heed::quantise
