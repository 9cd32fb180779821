// SPDX-License-Identifier: Apache-2.0
// Files of an attack. A journal has one file for each batch, written whole or not at all.
#include "cli/torch/attack_folder.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>
#include <foci/pictures.hpp>
#include <foci/safetensors.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// Contiguous tensors on the processor, and the views of them that a file is made from.
class Written {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    held_.push_back(tensor.to(at::kCPU).contiguous());
    const at::Tensor& t = held_.back();
    const DType type = t.scalar_type() == at::kFloat  ? DType::f32
                       : t.scalar_type() == at::kLong ? DType::i64
                                                      : DType::boolean;
    views_[name] = View(t.data_ptr(), type, std::span(t.sizes().data(), t.sizes().size()));
  }
  void write(const std::string& path, const std::map<std::string, std::string>& metadata) const {
    write_safetensors(path, views_, metadata);
  }

 private:
  std::vector<at::Tensor> held_;
  std::map<std::string, View> views_;
};

at::Tensor tensor_in(const Safetensors& file, const char* name, at::ScalarType type) {
  const View view = file.find(name);
  const at::IntArrayRef sizes(view.shape.data(), std::size_t(view.rank));
  return at::from_blob(view.data, sizes, at::TensorOptions().dtype(type)).clone();
}

attack::Found read_found(const std::string& path) {
  const Safetensors file(path);
  const auto& facts = file.metadata();
  if (facts.count("rejected") == 0 || !file.contains("fooled"))
    throw FileError(fmt::format("{}: is no batch of an attack; remove it", shown(path)));
  attack::Found found{at::empty({0}, at::kLong), at::empty({0}), to_count(facts.at("rejected"))};
  if (!file.contains("samples")) return found;
  found.samples = tensor_in(file, "samples", at::kLong);
  found.images = tensor_in(file, "images", at::kFloat);
  return found;
}

void write_found(const std::string& path, const attack::Found& found) {
  Written file;
  file.add("fooled", at::full({1}, found.samples.size(0), at::kLong));
  if (found.samples.size(0) > 0) {
    file.add("samples", found.samples);
    file.add("images", found.images);
  }
  file.write(path, {{"rejected", std::to_string(found.rejected)}});
}

/// Pixels of (C,H,W) in [0,1] at a place of a sheet.
void put(data::Image& sheet, const at::Tensor& image, int top, int left) {
  const at::Tensor bytes = (image.clamp(0, 1) * 255).round().to(at::kByte).permute({1, 2, 0});
  const at::Tensor rows = bytes.to(at::kCPU).contiguous();
  const auto wide = std::size_t(rows.size(1) * rows.size(2));
  for (int y = 0; y < int(rows.size(0)); ++y)
    std::copy_n(rows[y].data_ptr<std::uint8_t>(), wide, sheet.at(top + y, left));
}

/// Clean, adversarial, and 16 times the difference around grey, a row an image.
data::Image sheet_of(const at::Tensor& clean, const at::Tensor& fooling,
                     const at::Tensor& samples) {
  const int high = int(clean.size(2)), wide = int(clean.size(3)), rows = int(clean.size(0));
  data::Image sheet(rows * (high + 2), 3 * (wide + 2), int(clean.size(1)));
  for (int i = 0; i < rows; ++i) {
    put(sheet, clean[i], i * (high + 2), 0);
    put(sheet, fooling[i], i * (high + 2), wide + 2);
    put(sheet, (fooling[i] - clean[i]) * 16 + 0.5, i * (high + 2), 2 * (wide + 2));
  }
  std::vector<std::string> names;
  for (int i = 0; i < rows; ++i)
    names.push_back(fmt::format("image {}", samples[i].item<std::int64_t>()));
  return report::named_sheet(sheet, names, {"clean", "attacked", "difference x 16"});
}

/// What fooled each image at each size of the ball.
Json samples_json(const Attacked& subject, const std::vector<Judged>& judged) {
  Json all = Json::array();
  const at::Tensor clean = judged[0].arms[0].clean.to(at::kCPU);
  for (std::int64_t i = 0; i < subject.pixels.labels.size(0); ++i) {
    Json by = Json::object();
    for (const Judged& j : judged) {
      Json names = Json::array();
      for (std::size_t a = 0; a < j.arms.size(); ++a) {
        const auto which = j.arms[a].by[i].item<std::int64_t>();
        if (which < 0) continue;
        const Arm& arm = subject.arms[a];
        const std::string name = attack::name_of(arm.attacks[std::size_t(which)]);
        names.push_back(arm.name.empty() ? name : arm.name + " " + name);
      }
      by[j.reach.text] = names;
    }
    all.push_back({{"sample", subject.pixels.samples[i].item<std::int64_t>()},
                   {"label", subject.pixels.labels[i].item<std::int64_t>()},
                   {"right", clean[i].item<bool>()},
                   {"fooled_by", by}});
  }
  return all;
}

}  // namespace

AttackFolder::AttackFolder(std::string path, const Json& told) : path_(std::move(path)) {
  std::error_code fault;
  fs::create_directories(path_ + "/journal", fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(path_), fault.message()));
  const std::string file = path_ + "/attack.json";
  if (!fs::exists(file)) write_whole(file, told.dump(2) + "\n");
  std::ifstream stream(file);
  const Json before = Json::parse(stream, nullptr, false);
  if (before != told) {
    throw Misuse(
        fmt::format("{} holds another attack, or one on other weights or data", shown(path_)),
        "--out names another folder; without it, remove this one");
  }
  for (const auto& entry : fs::directory_iterator(path_ + "/journal", fault))
    batches_ += entry.path().extension() == ".safetensors" ? 1 : 0;
}

attack::Journal AttackFolder::journal(const std::string& name,
                                      const std::function<void(const attack::Step&)>& done) const {
  const auto file = [folder = path_, name](const attack::Step& step) {
    return fmt::format("{}/journal/{}-{}-{}.safetensors", folder, name, step.attack, step.batch);
  };
  const auto recall = [=](const attack::Step& step) -> std::optional<attack::Found> {
    if (!fs::exists(file(step))) return {};
    done(step);
    return read_found(file(step));
  };
  const auto keep = [=](const attack::Step& step, const attack::Found& found) {
    write_found(file(step), found);
    done(step);
  };
  return {recall, keep};
}

void AttackFolder::write(const Attacked& subject, const std::vector<Judged>& judged,
                         const Json& curve, std::int64_t rows) const {
  write_whole(path_ + "/curve.json", curve.dump(2) + "\n");
  write_whole(path_ + "/curve.svg", curve_svg(subject, judged));
  write_whole(path_ + "/samples.json", samples_json(subject, judged).dump(1) + "\n");
  Written file;
  file.add("samples", subject.pixels.samples);
  file.add("labels", subject.pixels.labels);
  file.add("clean", subject.pixels.images);
  for (const Judged& j : judged) {
    file.add("adversarial " + j.reach.text, j.images);
    file.add("robust " + j.reach.text, j.robust);
  }
  file.write(path_ + "/adversarial.safetensors", {{"pixels", "[0,1]"}});
  const Judged& last = judged.back();
  const at::Tensor fooled = last.arms[0]
                                .clean.logical_and(last.robust.logical_not())
                                .nonzero()
                                .squeeze(1)
                                .slice(0, 0, rows);
  if (fooled.size(0) == 0) return;
  data::write_png(path_ + "/sheet.png", sheet_of(subject.pixels.images.index_select(0, fooled),
                                                 last.images.index_select(0, fooled),
                                                 subject.pixels.samples.index_select(0, fooled)));
}

}  // namespace foci::cli
