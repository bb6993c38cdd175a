// A run's arrays in the device's memory, and its kernels.

#include <fmt/format.h>

#include "harness/messages.h"
#include "harness/run.h"

namespace ladder {

DeviceArrays::DeviceArrays(Device& device, const Step& step, const Problem& p, const Plans& plans,
                           const Inputs& inputs)
    : device_(device), dtype_(p.dtype) {
  const auto upload = [&](const std::string& name, const Tensor& t) {
    device.upload(make(name, t.bytes()), t.bits.data());
  };
  upload("Q", inputs.Q);
  upload("K", inputs.K);
  upload("V", inputs.V);
  make("O", inputs.Q.bytes());
  if (step.has_lse) make("LSE", int64_t{p.B} * p.H * p.N * 4);
  if (step.backward) {
    upload("dO", inputs.dO);
    make("dQ", inputs.Q.bytes());
    make("dK", inputs.K.bytes());
    make("dV", inputs.V.bytes());
  }
  for (const Plan* plan : {&plans.forward, &plans.backward})
    for (const auto& array : plan->workspace) make(array.name, array.bytes);
}

Array& DeviceArrays::make(const std::string& name, int64_t bytes) {
  buffers_.emplace_back(device_, name, bytes);
  arrays_.add(buffers_.back().array());
  return *buffers_.back().array();
}

std::vector<std::pair<std::string, int64_t>> DeviceArrays::sizes() const {
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const Buffer& buffer : buffers_)
    sizes.emplace_back(buffer.array()->name, buffer.array()->bytes);
  return sizes;
}

Tensor DeviceArrays::tensor(const std::string& name) const {
  const Array* const array = arrays_.find(name);
  if (!array) return {};
  Tensor t{dtype_, std::vector<uint16_t>(static_cast<size_t>(array->bytes / kIoBytes))};
  device_.download(t.bits.data(), *array);
  return t;
}

void DeviceArrays::download(Outputs& out) const {
  out.O = tensor("O");
  out.dQ = tensor("dQ");
  out.dK = tensor("dK");
  out.dV = tensor("dV");
  if (const Array* LSE = arrays_.find("LSE")) {
    out.LSE.resize(static_cast<size_t>(LSE->bytes) / sizeof(float));
    device_.download(out.LSE.data(), *LSE);
  }
}

void execute(Device& device, std::vector<PassRun>& passes) {
  for (auto& [launch, r] : passes) {
    const Progress progress(fmt::format("running {} {}{} on {}", r.rung, r.step,
                                        r.backward() ? " backward" : "", device.info().name));
    r.kernels = device.run(r.rung, launch);
  }
}

}  // namespace ladder
