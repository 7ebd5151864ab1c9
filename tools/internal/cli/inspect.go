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
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/inspect"
)

func (a *app) inspectCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "show what a store holds, also while another process has it open",
		Args:  command.NoArgs,
		RunE:  command.NeedsSubcommand,
	}
	cmd.PersistentFlags().StringVar(&dir, "dir", "", "directory of the store (required)")
	sub := func(use, short string, args cobra.PositionalArgs, run func(ctx context.Context, v *inspect.View, args []string) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) (err error) {
			log, err := a.Logger()
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
	sub("devices", "the drives: where they are, whether they are there, how full", command.NoArgs, a.inspectDevices)
	sub("groups", "the stripe groups and what lives in them", command.NoArgs, a.inspectGroups)
	sub("namespaces", "whose blocks there are", command.NoArgs, a.inspectNamespaces)
	sub("keys", "which encryption keys the blocks of each tenant need, by the keys' ids", command.NoArgs, a.inspectKeys)
	sub("block KEY", "one block by its key in hexadecimal, or the first digits of it", keyArgs(1, 1), a.inspectBlock)
	sub("chain KEY [KEY …]", "a chain by its keys, first block first, or by its last one", keyArgs(1, skep.MaxChainKeys), a.inspectChain)
	sub("side", "what the catalog holds of clustered contexts: medoids, routes, clusters", command.NoArgs, a.inspectSide)
	cmd.AddCommand(&cobra.Command{Use: "memory", Short: "what opening the store takes in memory, and its caps", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inspectMemory(cmd.Context(), dir) }})
	cmd.AddCommand(&cobra.Command{Use: "mrc", Short: "the miss-ratio curve of a store that is open: what more drives or DRAM would gain", Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.inspectMRC(cmd.Context(), dir) }})
	cmd.AddCommand(a.inspectClusters(&dir))
	return cmd
}

func keyArgs(min, max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < min || len(args) > max {
			return command.Usage(cmd, fmt.Errorf("%s needs a key in hexadecimal, not %d arguments", cmd.CommandPath(), len(args)), cmd.CommandPath()+" --help")
		}
		return nil
	}
}

func (a *app) inspectDevices(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Devices(ctx)
	if err != nil {
		return err
	}
	return a.Print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{command.Row("device", "path", "state", "size", "segments", "in use", "backend", "problem")}
		for _, d := range r.Devices {
			state := d.State
			if !d.Present && d.State != "removed" {
				state = "MISSING"
			}
			rows = append(rows, command.Row(d.Index, d.Path, state, command.Size(d.SizeBytes), d.Segments, d.InUse, command.Backend(d.Backend, d.BackendReason, d.Simulated), d.Problem))
		}
		command.Table(w, rows...)
	})
}

// rebuiltEpochs are the epochs of a store whose catalog was made anew: a rebuild cannot know how often it
// was opened, and begins at the time, which is later than any count.
const rebuiltEpochs = 1e9

func storeHead(w io.Writer, s inspect.Store) {
	end := "closed in order"
	if !s.Clean {
		end = "open, or not closed in order"
	}
	opened := fmt.Sprintf("opened %d times", s.Epoch)
	if s.Epoch >= rebuiltEpochs {
		opened = "its catalog was rebuilt"
	}
	fmt.Fprintf(w, "store %s, format %d, %s, %s\n\n", s.ID, s.Format, opened, end)
}

func (a *app) inspectGroups(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Groups(ctx)
	if err != nil {
		return err
	}
	return a.Print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{command.Row("group", "generation", "state", "devices", "segments", "blocks", "bytes", "live")}
		for _, g := range r.Groups {
			rows = append(rows, command.Row(g.Group, g.Generation, g.State, fmt.Sprint(g.Devices), fmt.Sprint(g.Segments), g.Blocks, command.Size(g.BlockBytes), fmt.Sprintf("%.1f %%", 100*g.LiveShare)))
		}
		command.Table(w, rows...)
	})
}

func (a *app) inspectNamespaces(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Namespaces(ctx)
	if err != nil {
		return err
	}
	return a.Print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{command.Row("id", "tenant", "name", "model", "shape", "class", "copies", "chained", "blocks", "bytes")}
		for _, n := range r.Namespaces {
			rows = append(rows, command.Row(n.ID, n.Tenant, n.Name, n.Model, shapeText(n.Shape), n.Class, n.Copies, n.Chained, n.Blocks, command.Size(n.BlockBytes)))
		}
		command.Table(w, rows...)
	})
}

func (a *app) inspectKeys(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Keys(ctx)
	if err != nil {
		return err
	}
	return a.Print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{command.Row("tenant", "key", "blocks", "bytes", "durable")}
		for _, k := range r.Keys {
			key := k.KeyID
			if key == "" {
				key = "none: not encrypted"
			}
			rows = append(rows, command.Row(k.Tenant, key, k.Blocks, command.Size(k.BlockBytes), k.Durable))
		}
		command.Table(w, rows...)
		fmt.Fprintln(w, "\nA key that is not listed is needed by no block of this store. A tenant's first key is\n"+
			"needed for what it puts.")
	})
}

func (a *app) inspectSide(ctx context.Context, v *inspect.View, _ []string) error {
	r, err := v.Sides(ctx)
	if err != nil {
		return err
	}
	return a.Print(r, func(w io.Writer) {
		storeHead(w, r.Store)
		rows := [][]string{command.Row("namespace", "block", "state", "rows", "bytes", "of them")}
		for _, s := range r.Sides {
			state, kinds := "current", []string{}
			if !s.Current {
				state = "stale"
			}
			for _, k := range s.Kinds {
				kinds = append(kinds, fmt.Sprintf("%s %d, %s", k.Kind, k.Rows, command.Size(k.Bytes)))
			}
			rows = append(rows, command.Row(s.Namespace, s.Key[:16], state, s.Rows, command.Size(s.Bytes), strings.Join(kinds, "; ")))
		}
		command.Table(w, rows...)
		fmt.Fprintf(w, "\n%d blocks, %s. A block is one layer of a context; what is stale is made anew when its context is opened.\n", len(r.Sides), command.Size(r.Bytes))
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
	return a.Print(r, func(w io.Writer) {
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
	rows := [][]string{command.Row("key", b.Key), command.Row("namespace", fmt.Sprintf("%d, instance %d, salted %v", b.Namespace, b.Instance, b.Salted)),
		command.Row("parent", parent), command.Row("depth", b.Depth), command.Row("valid tokens", valid), command.Row("bytes", b.Bytes),
		command.Row("written", fmt.Sprintf("sequence %d, version %d, durable %v, moved by the cleaner %v", b.Seq, b.Version, b.Durable, b.Moved))}
	if b.Name != "" {
		rows = append(rows, command.Row("name", b.Name))
	}
	for _, p := range b.Parts {
		where := "on devices"
		if p.Inline {
			where = "in its record"
		}
		rows = append(rows, command.Row("part "+p.Name, fmt.Sprintf("%d bytes, %d granules, %s", p.Bytes, p.Granules, where)))
	}
	for i, c := range b.Copies {
		place := fmt.Sprintf("group %d, device %d, page %d", c.Group, c.Device, c.Page)
		if c.Sub > 0 {
			place += fmt.Sprintf(", slot %d", c.Sub)
		}
		rows = append(rows, command.Row(fmt.Sprintf("copy %d", i), place))
	}
	command.Table(w, rows...)
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
	return a.Print(r, func(w io.Writer) {
		fmt.Fprintf(w, "namespace %d: %d of %d keys can be restored\n\n", r.Namespace, r.Restorable, r.Keys)
		rows := [][]string{command.Row("position", "key", "bytes", "group", "problem")}
		for _, l := range r.Links {
			bytes, group := "", ""
			if l.Block != nil {
				bytes = fmt.Sprint(l.Block.Bytes)
				if len(l.Block.Copies) > 0 {
					group = fmt.Sprint(l.Block.Copies[0].Group)
				}
			}
			rows = append(rows, command.Row(l.Position, l.Key[:16], bytes, group, l.Problem))
		}
		command.Table(w, rows...)
	})
}

// memoryResult is inspect memory.
type memoryResult struct {
	Dir           string             `json:"dir"`            // as given
	Blocks        int64              `json:"blocks"`         // in the index (blocks)
	Memory        []skep.MemoryStats `json:"memory"`         // what memory is held for
	Backend       string             `json:"backend"`        // what moves the bytes
	BackendReason string             `json:"backend_reason"` // why not a better one
	Simulated     bool               `json:"simulated"`      // a device is a simulation
}

func (a *app) inspectMemory(ctx context.Context, dir string) (err error) {
	log, err := a.Logger()
	if err != nil {
		return err
	}
	if dir == "" {
		return skep.Invalidf("inspect", "--dir", "empty", "the directory of a store")
	}
	st, err := store.Open(ctx, store.Options{Dir: dir, ReadOnly: true, CacheBytes: -1, IOBytes: 16 << 20, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := st.Stats(ctx)
	if err != nil {
		return err
	}
	r := memoryResult{dir, s.Blocks, s.Memory, s.Backend, s.BackendReason, s.Simulated}
	return a.Print(r, func(w io.Writer) {
		rows := [][]string{command.Row("what", "used", "cap")}
		for _, m := range r.Memory {
			limit := "see its name"
			if m.Cap > 0 {
				limit = command.Size(m.Cap)
			}
			rows = append(rows, command.Row(m.Name, command.Size(m.Used), limit))
		}
		command.Table(w, rows...)
		fmt.Fprintf(w, "\nOf this process, which opened the store of %d blocks for reading with the smallest budgets; a process\nthat serves shows its own in its statistics.\n", r.Blocks)
	})
}
