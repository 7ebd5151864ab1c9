package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/support"
)

// supportResult is skep support.
type supportResult struct {
	File string `json:"file"` // that was written
	support.Result
}

func (a *app) supportCommand() *cobra.Command {
	var dir, file string
	cmd := &cobra.Command{
		Use:   "support",
		Short: "gather what helps others to help into one file: no payload, no secrets",
		Long: `Writes a zstd-compressed tar of the machine's checks, the store's options, statistics and last log
lines (of a process that has it open with its admin socket) and what its catalog says of devices,
groups and namespaces. No payload, no keys, names or salts of blocks, not the store's secret;
names of tenants, namespaces and models, paths and the host's name are in it.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.support(cmd.Context(), dir, file) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the store (required)")
	cmd.Flags().StringVarP(&file, "output", "o", "skep-support.tar.zst", "file to write; it must not be there")
	return cmd
}

func (a *app) support(ctx context.Context, dir, file string) (err error) {
	log, err := a.Logger()
	if err != nil {
		return err
	}
	if err := support.Check(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return command.WithNext(&skep.Error{Op: "support", Kind: skep.Invalid, Field: "--output", Value: file, Err: err}, "name a file that is not there")
	}
	r, err := support.Write(ctx, support.Options{Dir: dir, Version: command.BuildVersion(), Log: log}, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return a.Print(supportResult{file, *r}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d files, %s before compression\n", file, len(r.Files), command.Size(r.Bytes))
		for _, name := range slices.Sorted(maps.Keys(r.Missing)) {
			fmt.Fprintf(w, "without %s: %s\n", name, r.Missing[name])
		}
	})
}

// mrcResult is inspect mrc.
type mrcResult struct {
	Dir           string          `json:"dir"`            // of the store
	Blocks        int64           `json:"blocks"`         // stored (blocks)
	Reuse         skep.ReuseStats `json:"reuse"`          // hit ratios by size, as lookups were seen
	Backend       string          `json:"backend"`        // what moves the bytes
	BackendReason string          `json:"backend_reason"` // why not a better one
	Simulated     bool            `json:"simulated"`      // a device is a simulation
}

func (a *app) inspectMRC(ctx context.Context, dir string) error {
	if dir == "" {
		return skep.Invalidf("inspect", "--dir", "empty", "the directory of a store")
	}
	var s skep.Stats
	if err := store.AskAdmin(ctx, dir, "stats", &s); err != nil {
		return withTopNext(err)
	}
	r := mrcResult{dir, s.Blocks, s.Reuse, s.Backend, s.BackendReason, s.Simulated}
	return a.Print(r, func(w io.Writer) {
		u := &r.Reuse
		rows := [][]string{command.Row("blocks", "bytes", "hit ratio", "")}
		for _, p := range u.Curve {
			rows = append(rows, command.Row(p.Blocks, command.Size(p.Bytes), fmt.Sprintf("%.4f", p.HitRatio), bar(p.HitRatio, 40)))
		}
		command.Table(w, rows...)
		fmt.Fprintf(w, "\ndevices as they are %.4f, twice %.4f; DRAM alone %.4f, twice %.4f\n", u.Devices, u.TwiceDevices, u.DRAM, u.TwiceDRAM)
		fmt.Fprintf(w, "hit ratio of an LRU of each size, on the %d keys looked up lately, of which %.3g were followed\n", u.References, u.SampleRate)
	})
}

// bar draws a share of n columns.
func bar(share float64, n int) string {
	out := make([]rune, int(share*float64(n)+.5))
	for i := range out {
		out[i] = '█'
	}
	return string(out)
}
