// Functions of one float as runtime_ops/kernels/row_math.h has them: what a driver's own are exact to, no device promises.
float exp_of(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
  precise float shifted = x * 1.44269502 + 12582912.0;
  precise float n = shifted - 12582912.0;
  precise float r = (x - n * 0.693359375) - n * -2.12194440e-4;
  float p = 1.98756912e-4;
  p = p * r + 1.39819994e-3;
  p = p * r + 8.33345205e-3;
  p = p * r + 4.16657962e-2;
  p = p * r + 1.66666657e-1;
  p = p * r + 0.5;
  p = (p * (r * r) + r) + 1.0;
  const float scaled = uintBitsToFloat(floatBitsToUint(p) + (floatBitsToUint(shifted) << 23));
  const float bounded = x <= 88.7228317 ? scaled : x + uintBitsToFloat(0x7F800000u);  // NaN stays NaN
  return x < -87.3365402 ? 0.0 : bounded;
}

// fdlibm's: x = 2^k * (1 + f) with 1 + f around 1, log(1 + f) by the series of s = f / (2 + f).
float log_of(float x) {
  const float infinity = uintBitsToFloat(0x7F800000u);
  const bool tiny = x < 1.17549435e-38;
  const uint bits = floatBitsToUint(tiny ? x * 33554432.0 : x) + (0x3F800000u - 0x3F3504F3u);
  const float k = float(int(bits >> 23) - (tiny ? 127 + 25 : 127));
  const float f = uintBitsToFloat((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0;
  const float s = f / (2.0 + f);
  const float z = s * s;
  const float w = z * z;
  const float odd = w * (0.400009722 + w * 0.242790788);
  const float even = z * (0.666666627 + w * 0.284987867);
  const float half_square = 0.5 * f * f;
  const float tail = s * (half_square + (odd + even)) + k * 9.05800061e-6;
  const float result = ((tail - half_square) + f) + k * 0.693138123;
  const float at = x == 0.0 ? -infinity : x == infinity ? x : result;
  return x >= 0.0 ? at : uintBitsToFloat(0x7FC00000u);
}

float sigmoid_of(float x) {
  return 1.0 / (1.0 + exp_of(-x));
}

float with_sign_of(float magnitude, float x) {
  return uintBitsToFloat((floatBitsToUint(magnitude) & 0x7FFFFFFFu) | (floatBitsToUint(x) & 0x80000000u));
}

// Cephes' polynomial near 0, where 1 - 2 / (exp(2x) + 1) would cancel.
float tanh_of(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3;
  p = p * z + 2.06390887954e-2;
  p = p * z - 5.37397155531e-2;
  p = p * z + 1.33314422036e-1;
  p = p * z - 3.33332819422e-1;
  const float near = (p * z) * x + x;
  const float t = abs(x);
  const float far = with_sign_of(1.0 - 2.0 / (exp_of(t + t) + 1.0), x);
  return t < 0.625 ? near : far;
}

float erf_of(float x) {
  const float magnitude = abs(x);
  const float t = magnitude > 4.0 ? 4.0 : magnitude;  // NaN stays NaN
  const float s = t * t;
  float far = (-1.72853470e-5 * t + 3.83197126e-4) * s + (-3.88396438e-3 * t + 2.42546219e-2);
  far = far * t + -1.06777877e-1;
  far = far * t + -6.34846687e-1;
  far = far * t + -1.28717512e-1;
  far = far * t - t;
  far = 1.0 - exp_of(far);
  float near = -5.96761703e-4;
  near = near * s + 4.99119423e-3;
  near = near * s - 2.67681349e-2;
  near = near * s + 1.12819925e-1;
  near = near * s - 3.76125336e-1;
  near = near * s + 1.28379166e-1;
  near = near * t + t;
  return with_sign_of(t > 0.927734375 ? far : near, x);
}
