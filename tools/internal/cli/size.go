package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/replaycmd"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/tools/internal/size"
	"github.com/skepkv/skep/tools/internal/trace"
)

// sizeResult is what skep size prints.
type sizeResult struct {
	size.Answer
	Traffic  *size.Traffic `json:"traffic"`  // what the trace says, null without one
	Model    string        `json:"model"`    // name, or path of the config.json
	Note     string        `json:"note"`     // what the arithmetic leaves out for this model
	Settings string        `json:"settings"` // the file that was written
}

func (a *app) sizeCommand() *cobra.Command {
	var model, config, kv, settings, recorded string
	ask := size.Ask{}
	drive, read, network := serve.Size(3_840_000_000_000), serve.Size(6_000_000_000), serve.Size(12_500_000_000)
	keep := serve.Duration(24 * time.Hour)
	cmd := &cobra.Command{Use: "size", Short: "say which hardware a fleet needs, and whether loading wins over computing", Args: command.NoArgs,
		Example: "  skep size --model llama-3.1-70b --prompts 4 --prompt-tokens 12000 --repeat 0.8 --prefill 15000\n" +
			"  skep size --config config.json --kv fp8 --drives 8 --drive-size 7.68TB --settings skep.yaml\n" +
			"  skep size --trace conversations.jsonl.zst --keep 1h"}
	f := cmd.Flags()
	f.StringVar(&model, "model", "llama-3.1-8b", "the model: "+strings.Join(size.Models(), ", "))
	f.StringVar(&config, "config", "", "a model's config.json in place of --model")
	f.StringVar(&kv, "kv", "bf16", "element type of the KV cache: bf16, f16, f32, fp8, i8, fp4")
	f.IntVar(&ask.Shape.BlockTokens, "block-tokens", 16, "tokens of a block")
	f.Float64Var(&ask.Prompts, "prompts", 1, "prompts a second, of all engines together")
	f.Float64Var(&ask.PromptTokens, "prompt-tokens", 8000, "tokens of a prompt")
	f.Float64Var(&ask.Repeat, "repeat", 0.7, "share of a prompt that an earlier prompt began with, 0 to 1")
	f.Var(&keep, "keep", "within how long such a prompt comes")
	f.StringVar(&recorded, "trace", "", "a recorded workload in place of --prompts, --prompt-tokens and --repeat: "+
		"what skep replay takes")
	f.Float64Var(&ask.Prefill, "prefill", 10_000, "tokens a second that the engines compute, all together")
	f.IntVar(&ask.Nodes, "nodes", 1, "nodes of one cluster that engines and drives are spread over")
	f.Var(&network, "network", "bytes a second that a node receives, where there are several")
	f.IntVar(&ask.Drives, "drives", 0, "drives there are, of all nodes; 0: as many as are needed")
	f.Var(&drive, "drive-size", "size of a drive")
	f.Var(&read, "drive-read", "bytes a second that a drive reads")
	f.Float64Var(&ask.DriveWrites, "drive-writes", 1, "whole drives a day that a drive may be written, for five years (DWPD)")
	f.IntVar(&ask.Copies, "copies", 1, "copies of each block")
	f.StringVar(&settings, "settings", "", "write settings for skep serve --config to this file, which must not be there")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ask.DriveBytes, ask.DriveRead, ask.Keep = int64(drive), float64(read), time.Duration(keep).Seconds()
		ask.Network = float64(network)
		r := &sizeResult{Model: model}
		tokens := ask.Shape.BlockTokens
		var err error
		if config == "" {
			ask.Shape, err = size.Model(model)
		} else if cmd.Flags().Changed("model") {
			return skep.Invalidf("size", "--model and --config", "both", "one of them")
		} else {
			r.Model = config
			ask.Shape, r.Note, err = shapeFrom(config)
		}
		if err != nil {
			return err
		}
		if ask.Shape.Element, err = size.Element(kv); err != nil {
			return err
		}
		ask.Shape.BlockTokens = tokens
		if recorded != "" {
			for _, name := range []string{"prompts", "prompt-tokens", "repeat"} {
				if cmd.Flags().Changed(name) {
					return skep.Invalidf("size", "--trace and --"+name, "both", "one of them")
				}
			}
			if r.Traffic, err = trafficIn(recorded, time.Duration(keep)); err != nil {
				return err
			}
			ask.Prompts, ask.PromptTokens, ask.Repeat = r.Traffic.Prompts, r.Traffic.PromptTokens, r.Traffic.Repeat
		}
		answer, err := size.For(ask)
		if err != nil {
			return err
		}
		r.Answer = *answer
		if settings != "" && answer.DrivesOfNode > serve.MostFileDevices {
			return skep.Invalidf("size", "--settings, drives of a node", answer.DrivesOfNode, fmt.Sprintf(
				"at most %d, which one server has: ask with more --nodes, or with --drives", serve.MostFileDevices))
		}
		if settings != "" {
			if err := writeSettings(settings, ask, answer); err != nil {
				return err
			}
			r.Settings = settings
		}
		return a.Print(r, func(w io.Writer) { printSize(w, ask, r) })
	}
	return cmd
}

// trafficIn sums up the trace at path.
func trafficIn(path string, keep time.Duration) (*size.Traffic, error) {
	tr, err := trace.Open(path)
	if err != nil {
		return nil, replaycmd.AsTrace(err)
	}
	defer tr.Close()
	t, err := size.TrafficOf(tr.All(), keep)
	return t, replaycmd.AsTrace(err)
}

// largestConfig is how much of a config.json is read.
const largestConfig = 1 << 20

func shapeFrom(path string) (s skep.Shape, note string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, "", command.WithNext(err, "name the config.json that the model was published with")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, largestConfig+1))
	if err == nil && len(b) > largestConfig {
		err = skep.Invalidf("size", "--config, bytes", fmt.Sprintf("over %d", largestConfig), fmt.Sprintf("at most %d", largestConfig))
	}
	if err != nil {
		return s, "", err
	}
	return size.FromConfig(path, b)
}

// writeSettings writes what of the answer is a setting of skep serve.
func writeSettings(path string, ask size.Ask, r *size.Answer) error {
	type store struct {
		CapacityBytes serve.Size `yaml:"capacity_bytes"`
		BlockBytes    serve.Size `yaml:"block_bytes"`
	}
	b, err := yaml.Marshal(struct {
		Dir         string         `yaml:"dir"`
		FileDevices int            `yaml:"file_devices"`
		Store       store          `yaml:"store"`
		Redis       map[string]int `yaml:"redis"`
	}{
		Dir:         "/var/lib/skep",
		FileDevices: r.DrivesOfNode,
		Store: store{serve.Size(max(r.SettingsCapacity>>20, 1) << 20), // 0 would be all there is
			serve.Size(r.SettingsBlockBytes)},
		Redis: map[string]int{"copies": ask.Copies},
	})
	if err != nil {
		return err
	}
	return writeNew("size", "--settings", path, []byte("# From skep size. dir is where the package keeps it. file_devices "+
		"makes files there; name the drives instead: devices: [/dev/nvme0n1, ...]\n"+string(b)))
}

// writeNew makes the file that a flag names.
func writeNew(op, flag, path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return &skep.Error{Op: op, Kind: skep.Invalid, Field: flag, Value: path,
			Limit: "a file that is not there yet, in a directory that is", Err: err}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil { // or the next one would find a part of it
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func printSize(w io.Writer, ask size.Ask, r *sizeResult) {
	big := func(n float64) string { return command.Size(int64(n)) }
	verdict := "loading wins"
	if !r.LoadingWins {
		verdict = "computing is faster than that; more of it, or overlapping both, would help"
	}
	gives, others := fmt.Sprintf("%d × %s/s", r.Drives, big(ask.DriveRead)), 1-1/float64(r.Nodes)
	if r.NetworkLimits {
		gives = fmt.Sprintf("%d nodes × %s/s of network ÷ %.3g from other nodes", r.Nodes, big(ask.Network), others)
	}
	server := "a server"
	if r.Nodes > 1 {
		server = "each node"
	}
	found := ask.PromptTokens * ask.Repeat
	if t := r.Traffic; t != nil {
		fmt.Fprintf(w, "%d prompts in %v: %.4g a second of %.5g tokens, %.1f %% of them found within %v\n\n", t.Requests,
			time.Duration(t.Seconds*1e9).Round(time.Second), t.Prompts, t.PromptTokens, 100*t.Repeat, time.Duration(ask.Keep*1e9))
	}
	rows := [][]string{
		command.Row("KV of a token", big(float64(r.BytesPerToken)), tokenFormula(ask.Shape)),
		command.Row("of a block", big(float64(r.BytesPerBlock)), fmt.Sprintf("× %d tokens", ask.Shape.BlockTokens)),
		command.Row("", "", ""),
		command.Row("computing makes", big(r.ComputeBytesPerSecond)+"/s",
			fmt.Sprintf("%.6g tokens/s × KV of a token", ask.Prefill)),
		command.Row("loading gives", big(r.LoadBytesPerSecond)+"/s", gives+": "+verdict),
		command.Row("a prompt's found part", fmt.Sprintf("%.3g s saved", r.SavedSeconds),
			fmt.Sprintf("%.6g tokens: %.3g s computed by %s, %.3g s loaded, with nothing beside it", found, r.ComputeSeconds,
				server, r.LoadSeconds)),
		command.Row("", "", ""),
		command.Row("capacity", big(r.CapacityBytes), fmt.Sprintf(
			"prompts/s × tokens computed in each × %v × KV of a token × copies × 1.04", time.Duration(ask.Keep*1e9))),
		command.Row("blocks", fmt.Sprintf("%.4g", r.Blocks), "at a time"),
		command.Row("reads", big(r.ReadBytesPerSecond)+"/s", "prompts/s × tokens found in each × KV of a token"),
		command.Row("writes", big(r.WriteBytesPerSecond)+"/s", fmt.Sprintf(
			"prompts/s × tokens computed × KV of a token × copies × 1.15: %s a day", big(r.WritesPerDay))),
	}
	needed := fmt.Sprintf("%d for capacity, %d for reads, %d for wear", r.DrivesForCapacity, r.DrivesForReads,
		r.DrivesForWear)
	if r.Nodes > 1 {
		rows = append(rows, command.Row("a node receives", big(r.NetworkBytesPerSecond)+"/s",
			fmt.Sprintf("of %s/s: (reads + puts) × %.3g from others ÷ %d nodes", big(ask.Network), others, r.Nodes)))
		needed += fmt.Sprintf("; as many on each of %d nodes", r.Nodes)
	}
	rows = append(rows,
		command.Row("", "", ""),
		command.Row("drives needed", r.DrivesNeeded, needed),
		command.Row("life of "+fmt.Sprint(r.Drives), years(r.YearsOfLife),
			fmt.Sprintf("%.3g whole drives a day, of %.3g promised for 5 years", r.DriveWritesPerDay, ask.DriveWrites)),
		command.Row("index of "+server, big(r.IndexBytes), "64 bytes a block, in memory"),
		command.Row("memory of "+server, big(r.MemoryBytes),
			"index + DRAM tier 256 MiB + I/O 512 MiB + catalog and calls 548 MiB, each as set unless changed"),
		command.Row("catalog's directory", big(r.CatalogBytes),
			fmt.Sprintf("2 × blocks × (100 + 9 × %d checksum chunks) + 250 MiB", r.ChecksumChunks)))
	command.Table(w, rows...)
	if r.Note != "" {
		fmt.Fprintln(w, "\n"+r.Note)
	}
	if r.DrivesNeeded > r.Drives {
		fmt.Fprintf(w, "\n%d drives are fewer than the %d that are needed: prompts come back later than their blocks stay, "+
			"or wait for drives, or wear them out\n", r.Drives, r.DrivesNeeded)
	}
	if r.DrivesForWear > r.Drives {
		fmt.Fprintf(w, "\nwrites of at most %s a day to each drive keep them for %d years: skep serve --write-budget; what "+
			"is read again gets them\n", big(ask.DriveWrites*float64(ask.DriveBytes)), size.Warranty)
	}
	if r.Settings != "" {
		fmt.Fprintf(w, "\nwrote %s: skep serve --config %s --dir D\n", r.Settings, r.Settings)
	}
}

func tokenFormula(s skep.Shape) string {
	if s.Kind == skep.Latent {
		return fmt.Sprintf("%d layers × %d × %d bits", s.Layers, s.HeadDim, s.Element.Bits())
	}
	return fmt.Sprintf("2 × %d layers × %d KV heads × %d × %d bits", s.Layers, s.KVHeads, s.HeadDim, s.Element.Bits())
}

func years(n float64) string {
	if n >= 100 {
		return "over 100 years"
	}
	return fmt.Sprintf("%.3g years", n)
}
