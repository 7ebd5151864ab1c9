package size

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/skepkv/skep"
)

// models are geometries of well-known models, from the config.json that each is published with, in bf16.
var models = map[string]skep.Shape{
	"llama-3.1-8b":   attention(32, 8, 128),
	"llama-3.1-70b":  attention(80, 8, 128),
	"llama-3.1-405b": attention(126, 8, 128),
	"mistral-7b":     attention(32, 8, 128),
	"qwen2.5-7b":     attention(28, 4, 128),
	"qwen2.5-72b":    attention(80, 8, 128),
	"qwen3-8b":       attention(36, 8, 128),
	"qwen3-32b":      attention(64, 8, 128),
	"deepseek-v3":    latent(61, 512+64),
}

func attention(layers, heads, dim int) skep.Shape {
	return skep.Shape{Kind: skep.Attention, Layers: layers, KVHeads: heads, HeadDim: dim, Element: skep.BF16}
}

func latent(layers, dim int) skep.Shape {
	return skep.Shape{Kind: skep.Latent, Layers: layers, HeadDim: dim, Element: skep.BF16}
}

// Models are the names that Model knows.
func Models() []string {
	var names []string
	for n := range models {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Model is the shape of a model by its name; blocks have no tokens yet.
func Model(name string) (skep.Shape, error) {
	s, ok := models[strings.ToLower(name)]
	if !ok {
		return skep.Shape{}, skep.Invalidf("size", "--model", name, strings.Join(Models(), ", ")+"; for another give --config its config.json")
	}
	return s, nil
}

// config is what a config.json says of the KV cache, as Hugging Face's transformers name it.
type config struct {
	Layers    int     `json:"num_hidden_layers"`
	Heads     int     `json:"num_attention_heads"`
	KVHeads   int     `json:"num_key_value_heads"`
	HeadDim   int     `json:"head_dim"`
	Hidden    int     `json:"hidden_size"`
	LoRA      int     `json:"kv_lora_rank"`
	Rope      int     `json:"qk_rope_head_dim"`
	Window    int     `json:"sliding_window"`
	UseWindow *bool   `json:"use_sliding_window"`
	Text      *config `json:"text_config"`
}

// FromConfig is the shape of the model that a config.json describes, and what of it the shape cannot say, or "".
func FromConfig(file string, text []byte) (s skep.Shape, note string, err error) {
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return s, "", &skep.Error{Op: "size", Kind: skep.Invalid, Field: "--config", Value: file, Limit: "a model's config.json", Err: err}
	}
	if c.Text != nil && c.Layers == 0 { // a model that sees or hears, too
		c = *c.Text
	}
	if c.LoRA > 0 {
		s = latent(c.Layers, c.LoRA+c.Rope)
	} else {
		if c.KVHeads == 0 {
			c.KVHeads = c.Heads
		}
		if c.HeadDim == 0 && c.Heads > 0 {
			c.HeadDim = c.Hidden / c.Heads
		}
		s = attention(c.Layers, c.KVHeads, c.HeadDim)
	}
	s.BlockTokens = 1
	if err := s.Validate(); err != nil {
		return s, "", &skep.Error{Op: "size", Kind: skep.Invalid, Field: "--config", Value: file,
			Limit: "a config.json with num_hidden_layers, num_key_value_heads and head_dim, or with kv_lora_rank", Err: err}
	}
	s.BlockTokens = 0
	if c.Window > 0 && (c.UseWindow == nil || *c.UseWindow) {
		note = fmt.Sprintf("layers with a sliding window of %d tokens need less than is said here: all layers are counted as if they kept every token", c.Window)
	}
	return s, note, nil
}

// Element is the type that an engine's name of a KV cache's type stands for.
func Element(name string) (skep.ElementType, error) {
	short, _, _ := strings.Cut(strings.ToLower(name), "_") // fp8_e4m3
	for _, e := range []skep.ElementType{skep.BF16, skep.F16, skep.F32, skep.FP8, skep.I8, skep.FP4} {
		if short == e.String() {
			return e, nil
		}
	}
	return 0, skep.Invalidf("size", "--kv", name, "bf16, f16, f32, fp8, i8 or fp4")
}
