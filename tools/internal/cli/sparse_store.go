package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/sparse"
	"github.com/skepkv/skep/tools/internal/command"
)

// contextFlags name one clustered context of a store.
type contextFlags struct {
	dir, tenant, namespace, salt string
	layer                        int
}

func (f *contextFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tenant, "tenant", "", "tenant of the chain's namespace (required)")
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "the chain's namespace (required)")
	cmd.Flags().StringVar(&f.salt, "salt", "", "salt the chain was put under")
	cmd.Flags().IntVar(&f.layer, "layer", -1, "layer; -1: all")
}

// with opens a store and the context of the chain that ends with key.
func (f *contextFlags) with(ctx context.Context, a *app, key string, readOnly bool, do func(c skep.SparseContext) error) (err error) {
	last, err := skep.ParseHexKey(key)
	if err != nil {
		return err
	}
	if f.dir == "" {
		return skep.Invalidf("context", "--dir", "missing", "the store's directory")
	}
	log, err := a.Logger()
	if err != nil {
		return err
	}
	o := store.Options{Dir: f.dir, ReadOnly: readOnly, MustExist: true, WithoutKeys: true, Logger: log}
	st, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	all, err := st.Namespaces(ctx)
	if err != nil {
		return err
	}
	var scope skep.Scope
	for _, n := range all {
		if n.Tenant == f.tenant && n.Name == f.namespace {
			scope = skep.Scope{Namespace: n.ID, Salt: skep.Salt(f.salt)}
		}
	}
	if scope.Namespace == 0 {
		return &skep.Error{Op: "context", Kind: skep.NotFound, Field: "--tenant and --namespace", Value: f.tenant + "/" + f.namespace}
	}
	sp, err := sparse.New(st, sparse.Options{Workers: 2, Alone: true})
	if err != nil {
		return err
	}
	defer func() {
		if !readOnly {
			err = errors.Join(err, sp.Close(context.WithoutCancel(ctx)))
		}
	}()
	c, err := sp.OpenContext(ctx, scope, last)
	if err != nil {
		return err
	}
	if n := c.Info().Layers; f.layer < -1 || f.layer >= n {
		return skep.Invalidf("context", "--layer", f.layer, fmt.Sprintf("-1 to %d", n-1))
	}
	return do(c)
}

func (f *contextFlags) layers(c skep.SparseContext) (from, to int) {
	if f.layer >= 0 {
		return f.layer, f.layer + 1
	}
	return 0, c.Info().Layers
}

// reclusterLayer is what recluster did to one layer.
type reclusterLayer struct {
	Layer int `json:"layer"` // its number
	skep.ReclusterResult
}

type reclusterResult struct {
	Context string           `json:"context"` // KEY
	Layers  []reclusterLayer `json:"layers"`  // each layer that was looked at
}

func (a *app) reclusterCommand() *cobra.Command {
	f := contextFlags{}
	cmd := &cobra.Command{Use: "recluster KEY", Short: "lay a clustered context out anew from what was observed", Args: keyArgs(1, 1),
		Long: `KEY is the last block of the context's chain, in hexadecimal. A layer's new layout is kept
only if it reads explorative steps faster that neither layout was made from. Interrupted, it goes
on where it was when it is run again. Takes the store's lock.`}
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of the store (required)")
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		res := reclusterResult{Context: args[0], Layers: []reclusterLayer{}}
		err := f.with(cmd.Context(), a, args[0], false, func(c skep.SparseContext) error {
			from, to := f.layers(c)
			for l := from; l < to; l++ {
				r, err := c.Recluster(cmd.Context(), l)
				if err != nil {
					return err
				}
				res.Layers = append(res.Layers, reclusterLayer{l, r})
			}
			return nil
		})
		if err != nil && len(res.Layers) == 0 {
			return err
		}
		return cmp.Or(err, a.Print(res, func(w io.Writer) { // of one that was interrupted, what it came to
			rows := [][]string{command.Row("layer", "kept", "µs a step before", "after", "steps judged", "records written", "resumed", "reason")}
			for _, l := range res.Layers {
				rows = append(rows, command.Row(l.Layer, l.Kept, l.Before*1e6, l.After*1e6, l.Judged, l.Moved, l.Resumed, l.Reason))
			}
			command.Table(w, rows...)
		}))
	}
	return cmd
}

// clustersLayer is one layer of inspect clusters.
type clustersLayer struct {
	Layer int `json:"layer"` // its number
	skep.LayerInfo
	skep.SparseClusters
}

type clustersResult struct {
	Context string `json:"context"` // KEY
	skep.SparseInfo
	Described []clustersLayer `json:"clusters"` // the layers asked for, with what their clusters are like
}

func (a *app) inspectClusters(dir *string) *cobra.Command {
	f := contextFlags{}
	var picture string
	cmd := &cobra.Command{Use: "clusters KEY", Short: "a clustered context: sizes, radii, runs, copies, balance, and a picture", Args: keyArgs(1, 1)}
	f.add(cmd)
	cmd.Flags().StringVar(&picture, "svg", "", "file to draw co-activation and placement of --layer into (layer 0 where none is named), which must not be there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.dir = *dir
		res := clustersResult{Context: args[0]}
		err := f.with(cmd.Context(), a, args[0], true, func(c skep.SparseContext) error {
			res.SparseInfo = c.Info()
			res.Described = []clustersLayer{}
			from, to := f.layers(c)
			for l := from; l < to; l++ {
				s, err := c.Clusters(l)
				if err != nil {
					return err
				}
				res.Described = append(res.Described, clustersLayer{l, res.PerLayer[l], s})
			}
			if picture == "" {
				return nil
			}
			return writeNew("inspect clusters", "--svg", picture,
				clusterPicture(res.SparseInfo, from, &res.Described[0].SparseClusters))
		})
		if err != nil {
			return err
		}
		return a.Print(res, func(w io.Writer) {
			i := res.SparseInfo
			fmt.Fprintf(w, "context %s: %d entries (%d appended) of %s in %d layers on %d devices\n\n", i.Last.Short(), i.Entries, i.Appended, command.Size(i.EntryBytes), i.Layers, i.Devices)
			rows := [][]string{command.Row("layer", "generation", "clusters", "largest", "mean size", "mean radius", "mean runs", "overgrown", "copies", "balance", "steps", "in DRAM", "index", "in rows")}
			for _, l := range res.Described {
				rows = append(rows, command.Row(l.Layer, l.Generation, len(l.Sizes), largest(l.Sizes), mean(l.Sizes), mean(l.Radii), mean(l.Runs), l.Overgrown,
					l.Copies, l.Balance, l.Steps, l.Resident, command.Size(l.IndexBytes), command.Size(l.RowBytes)))
			}
			command.Table(w, rows...)
		})
	}
	return cmd
}

func largest(v []int) (most int) {
	for _, x := range v {
		most = max(most, x)
	}
	return most
}

func mean[T int | float64](v []T) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return sum / float64(len(v))
}
