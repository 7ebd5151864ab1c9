package twopointer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skepkv/skep"
)

// GPU is what a data sheet says of an accelerator.
type GPU struct {
	Name   string
	FLOPS  float64 // dense bf16, a second
	Memory float64 // bytes a second
	Source string
}

// Model is what a configuration file says of a language model, in bf16.
type Model struct {
	Name      string
	Params    float64 // all weights but the embedding tables
	Active    float64 // of them, used for one token
	Layers    int
	Hidden    int
	Heads, KV int // query heads, KV heads
	HeadDim   int
	Context   int // tokens
	Source    string
}

// BytesPerToken is the KV of one token, all layers, K and V, bf16.
func (m Model) BytesPerToken() int64 { return int64(m.Layers) * 2 * int64(m.KV) * int64(m.HeadDim) * 2 }

// BoundaryPerToken is what enters a pipeline stage for one token: the hidden state, bf16.
func (m Model) BoundaryPerToken() int64 { return int64(m.Hidden) * 2 }

// Shape is the model's KV in blocks of the given tokens.
func (m Model) Shape(blockTokens int) skep.Shape {
	return skep.Shape{Kind: skep.Attention, Layers: m.Layers, KVHeads: m.KV, HeadDim: m.HeadDim, Element: skep.BF16, BlockTokens: blockTokens}
}

// Utilisation is the share of a GPU's peak that prefill is reckoned to reach in presets. At
// 0.45 Qwen3-8B computes 20,000 tokens on an H100 in 0.9 s, which is what engines are seen
// to do. It is a guess to begin with: an engine that supplies points (Fit) does better, and
// the scheduler learns the rest.
const Utilisation = 0.45

// launchSeconds is what a forward pass costs besides reading weights.
const launchSeconds = 1e-3

// PresetCost derives what computing costs: all weights are read once a launch (a launch of many tokens
// touches every expert); each token
// takes 2 operations for each active weight; attention takes 2·layers·heads·dim operations for
// each pair of a token and one before it, twice (scores and values).
func PresetCost(g GPU, m Model) Cost {
	rate := g.FLOPS * Utilisation
	return Cost{
		Fixed:     launchSeconds + m.Params*2/g.Memory,
		PerToken:  2 * m.Active / rate,
		PerSquare: 2 * float64(m.Layers) * float64(m.Heads) * float64(m.HeadDim) / rate,
	}
}

var gpus = []GPU{
	{"h100", 989e12, 3.35e12, "NVIDIA H100 SXM5 80 GB data sheet"},
	{"a100", 312e12, 2.039e12, "NVIDIA A100 SXM 80 GB data sheet"},
	{"l40s", 362e12, 0.864e12, "NVIDIA L40S 48 GB data sheet"},
	{"h20", 148e12, 4.0e12, "NVIDIA H20 96 GB data sheet"},
}

var models = []Model{
	{"qwen3-8b", 6.95e9, 6.95e9, 36, 4096, 32, 8, 128, 40960, "Qwen/Qwen3-8B model card and config.json"},
	{"qwen3-30b-a3b", 29.9e9, 3.0e9, 48, 2048, 32, 4, 128, 40960, "Qwen/Qwen3-30B-A3B model card and config.json"},
	{"qwen3-32b", 31.2e9, 31.2e9, 64, 5120, 64, 8, 128, 40960, "Qwen/Qwen3-32B model card and config.json"},
	{"llama-3.1-8b", 6.98e9, 6.98e9, 32, 4096, 32, 8, 128, 131072, "meta-llama/Llama-3.1-8B config.json"},
	{"llama-3.1-70b", 68.5e9, 68.5e9, 80, 8192, 64, 8, 128, 131072, "meta-llama/Llama-3.1-70B config.json"},
}

// GPUNamed is a preset, Invalid when there is none of that name.
func GPUNamed(name string) (GPU, error) {
	return named("gpu", gpus, name, func(g GPU) string { return g.Name })
}

// ModelNamed is a preset, Invalid when there is none of that name.
func ModelNamed(name string) (Model, error) {
	return named("model", models, name, func(m Model) string { return m.Name })
}

func named[T any](what string, list []T, name string, of func(T) string) (T, error) {
	i := slices.IndexFunc(list, func(v T) bool { return of(v) == name })
	if i < 0 {
		var none T
		var all []string
		for _, v := range list {
			all = append(all, of(v))
		}
		return none, skep.Invalidf("preset", what, fmt.Sprintf("%q", name), strings.Join(all, ", "))
	}
	return list[i], nil
}

// GPUs and Models are all presets.
func GPUs() []GPU     { return slices.Clone(gpus) }
func Models() []Model { return slices.Clone(models) }
