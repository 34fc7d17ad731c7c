// A convolution of few windows as a product of matrices (see window_products.py): what is copied before it and behind it.
// All is float32 in two dimensions; sizes and steps are those of tensors: image, channel, row, column.
struct Windows {
  const i64 *step;                           // of the images
  const i64 *image, *kernel, *out;           // sizes: of the images; of the weight (features first); of the result
  const i64 *stride, *padding, *dilation;    // of rows and of columns
};

// rows: (windows, channels * kernel)
static void copy_patches(const float *x, const Windows *g, float *rows) {
  const i64 channels = g->kernel[1], height = g->kernel[2], width = g->kernel[3], taps = height * width;
  for (i64 image = 0; image < g->out[0]; image++)
    for (i64 at = 0; at < g->out[2] * g->out[3]; at++, rows += channels * taps)
      for (i64 tap = 0; tap < taps; tap++) {
        i64 row = at / g->out[3] * g->stride[0] - g->padding[0] + tap / width * g->dilation[0];
        i64 column = at % g->out[3] * g->stride[1] - g->padding[1] + tap % width * g->dilation[1];
        bool inside = row >= 0 && row < g->image[2] && column >= 0 && column < g->image[3];
        const float *from = x + image * g->step[0] + row * g->step[2] + column * g->step[3];
        for (i64 c = 0; c < channels; c++) rows[c * taps + tap] = inside ? from[c * g->step[1]] : 0.0f;
      }
}

// rows: (windows, features), to a tensor of the result's sizes with these steps
static void copy_images(const float *rows, const Windows *g, const float *bias, const i64 *step, float *to) {
  const i64 features = g->kernel[0];
  for (i64 image = 0; image < g->out[0]; image++)
    for (i64 row = 0; row < g->out[2]; row++)
      for (i64 column = 0; column < g->out[3]; column++, rows += features) {
        float *place = to + image * step[0] + row * step[2] + column * step[3];
        for (i64 f = 0; f < features; f++) place[f * step[1]] = rows[f] + (bias ? bias[f] : 0.0f);
      }
}

