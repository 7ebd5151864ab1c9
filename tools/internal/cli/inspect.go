package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/inspect"
)

func (a *app) inspectCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "show what a store holds, also while another process has it open",
		Args:  noArgs,
		RunE:  needsSubcommand,
	}
	cmd.PersistentFlags().StringVar(&dir, "dir", "", "directory of the store (required)")
	sub := func(use, short string, args cobra.PositionalArgs, run func(ctx context.Context, v *inspect.View, args []string) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) (err error) {
			log, err := a.logger()
			if err != nil {
				return err
			}
			v, err := inspect.Open(dir, log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, v.Close()) }()
			return run(cmd.Context(), v, args)
		}})
	}
	sub("devices", "the drives: where they are, whether they are there, how full", noArgs, a.inspectDevices)
	sub("groups", "the stripe groups and what lives in them", noArgs, a.inspectGroups)
	sub("namespaces", "whose blocks there are", noArgs, a.inspectNamespaces)
	sub("block KEY", "one block by its key in hexadecimal, or the first digits of it", keyArgs(1, 1), a.inspectBlock)
	sub("chain KEY [KEY …]", "a chain by its keys, first block first, or by its last one", keyArgs(1, skep.MaxChainKeys), a.inspectChain)
	sub("side", "what the catalog holds of clustered contexts: medoids, routes, clusters", noArgs, a.inspectSide)
	cmd.AddCommand(&cobra.Command{Use: "memory", Short: "what opening the store takes in memory, and its caps", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inspectMemory(cmd.Context(), dir) }})
	cmd.AddCommand(&cobra.Command{Use: "mrc", Short: "the miss-ratio curve of a store that is open: what more drives or DRAM would gain", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inspectMRC(cmd.Context(), dir) }})
	cmd.AddCommand(a.inspectClusters(&dir))
	return cmd
}

func keyArgs(min, max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < min || len(args) > max {
			return &usageError{fmt.Errorf("%s needs a key in hexadecimal, not %d arguments", cmd.CommandPath(), len(args)), cmd.CommandPath() + " --help"}
		}
		return nil
	}
}

func (a *app) inspectDevices(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Devices(ctx)
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{row("device", "path", "state", "size", "segments", "in use", "backend", "problem")}
		for _, d := range r.Devices {
			state := d.State
			if !d.Present {
				state = "MISSING"
			}
			rows = append(rows, row(d.Index, d.Path, state, size(d.SizeBytes), d.Segments, d.InUse, backend(d.Backend, d.BackendReason, d.Simulated), d.Problem))
		}
		table(w, rows...)
	})
}

func storeHead(w io.Writer, s inspect.Store) {
	end := "closed in order"
	if !s.Clean {
		end = "open, or not closed in order"
	}
	fmt.Fprintf(w, "store %s, format %d, opened %d times, %s\n\n", s.ID, s.Format, s.Epoch, end)
}

func (a *app) inspectGroups(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Groups(ctx)
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{row("group", "generation", "state", "devices", "segments", "blocks", "bytes", "live")}
		for _, g := range r.Groups {
			rows = append(rows, row(g.Group, g.Generation, g.State, fmt.Sprint(g.Devices), fmt.Sprint(g.Segments), g.Blocks, size(g.BlockBytes), fmt.Sprintf("%.1f %%", 100*g.LiveShare)))
		}
		table(w, rows...)
	})
}

func (a *app) inspectNamespaces(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Namespaces(ctx)
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{row("id", "tenant", "name", "model", "shape", "class", "copies", "chained", "blocks", "bytes")}
		for _, n := range r.Namespaces {
			rows = append(rows, row(n.ID, n.Tenant, n.Name, n.Model, shapeText(n.Shape), n.Class, n.Copies, n.Chained, n.Blocks, size(n.BlockBytes)))
		}
		table(w, rows...)
	})
}

func (a *app) inspectSide(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Sides(ctx)
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{row("namespace", "block", "state", "rows", "bytes", "of them")}
		for _, s := range r.Sides {
			state, kinds := "current", []string{}
			if !s.Current {
				state = "stale"
			}
			for _, k := range s.Kinds {
				kinds = append(kinds, fmt.Sprintf("%s %d, %s", k.Kind, k.Rows, size(k.Bytes)))
			}
			rows = append(rows, row(s.Namespace, s.Key[:16], state, s.Rows, size(s.Bytes), strings.Join(kinds, "; ")))
		}
		table(w, rows...)
		fmt.Fprintf(w, "\n%d blocks, %s. A block is one layer of a context; what is stale is made anew when its context is opened.\n", len(r.Sides), size(r.Bytes))
	})
}

func shapeText(s skep.Shape) string {
	if s.Kind == skep.Opaque {
		return fmt.Sprintf("opaque, %d tokens", s.BlockTokens)
	}
	return fmt.Sprintf("%s, %d tokens, L%d H%d D%d %s", s.Kind, s.BlockTokens, s.Layers, s.KVHeads, s.HeadDim, s.Element)
}

func (a *app) inspectBlock(ctx context.Context, v *inspect.View, args []string) error {
	r, err := v.Block(ctx, args[0])
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		for i, b := range r.Blocks {
			if i > 0 {
				fmt.Fprintln(w)
			}
			blockText(w, &b)
		}
	})
}

func blockText(w io.Writer, b *inspect.Block) {
	parent, valid := b.Parent, "all"
	if parent == "" {
		parent = "none"
	}
	if b.ValidTokens > 0 {
		valid = fmt.Sprint(b.ValidTokens)
	}
	rows := [][]string{row("key", b.Key), row("namespace", fmt.Sprintf("%d, instance %d, salted %v", b.Namespace, b.Instance, b.Salted)),
		row("parent", parent), row("depth", b.Depth), row("valid tokens", valid), row("bytes", b.Bytes),
		row("written", fmt.Sprintf("sequence %d, version %d, durable %v, moved by the cleaner %v", b.Seq, b.Version, b.Durable, b.Moved))}
	if b.Name != "" {
		rows = append(rows, row("name", b.Name))
	}
	for _, p := range b.Parts {
		where := "on devices"
		if p.Inline {
			where = "in its record"
		}
		rows = append(rows, row("part "+p.Name, fmt.Sprintf("%d bytes, %d granules, %s", p.Bytes, p.Granules, where)))
	}
	for i, c := range b.Copies {
		place := fmt.Sprintf("group %d, device %d, page %d", c.Group, c.Device, c.Page)
		if c.Sub > 0 {
			place += fmt.Sprintf(", slot %d", c.Sub)
		}
		rows = append(rows, row(fmt.Sprintf("copy %d", i), place))
	}
	table(w, rows...)
}

func (a *app) inspectChain(ctx context.Context, v *inspect.View, args []string) error {
	keys := make([]skep.Key, len(args))
	for i, s := range args {
		k, err := skep.ParseHexKey(strings.ToLower(s))
		if err != nil {
			return err
		}
		keys[i] = k
	}
	r, err := v.Chain(ctx, keys)
	if err != nil {
		return err
	}
	return a.print(r, func(w io.Writer) {
		fmt.Fprintf(w, "namespace %d: %d of %d keys can be restored\n\n", r.Namespace, r.Restorable, r.Keys)
		rows := [][]string{row("position", "key", "bytes", "group", "problem")}
		for _, l := range r.Links {
			bytes, group := "", ""
			if l.Block != nil {
				bytes = fmt.Sprint(l.Block.Bytes)
				if len(l.Block.Copies) > 0 {
					group = fmt.Sprint(l.Block.Copies[0].Group)
				}
			}
			rows = append(rows, row(l.Position, l.Key[:16], bytes, group, l.Problem))
		}
		table(w, rows...)
	})
}

// memoryResult is inspect memory.
type memoryResult struct {
	Dir           string             `json:"dir"`
	Blocks        int64              `json:"blocks"`
	Memory        []skep.MemoryStats `json:"memory"`
	Backend       string             `json:"backend"`
	BackendReason string             `json:"backend_reason"`
	Simulated     bool               `json:"simulated"`
}

func (a *app) inspectMemory(ctx context.Context, dir string) (err error) {
	log, err := a.logger()
	if err != nil {
		return err
	}
	if dir == "" {
		return skep.Invalidf("inspect", "--dir", "empty", "the directory of a store")
	}
	st, err := openStore(ctx, store.Options{Dir: dir, ReadOnly: true, CacheBytes: -1, IOBytes: 16 << 20, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := st.Stats(ctx)
	if err != nil {
		return err
	}
	r := memoryResult{dir, s.Blocks, s.Memory, s.Backend, s.BackendReason, s.Simulated}
	return a.print(r, func(w io.Writer) {
		rows := [][]string{row("what", "used", "cap")}
		for _, m := range r.Memory {
			limit := "see its name"
			if m.Cap > 0 {
				limit = size(m.Cap)
			}
			rows = append(rows, row(m.Name, size(m.Used), limit))
		}
		table(w, rows...)
		fmt.Fprintf(w, "\nOf this process, which opened the store of %d blocks for reading with the smallest budgets; a process\nthat serves shows its own in its statistics.\n", r.Blocks)
	})
}
