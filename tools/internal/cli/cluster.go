package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/clusterdemo"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/tools/internal/remote"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "a Store of several nodes",
		Long: `A cluster is several servers that have one map. The nodes agree on it: init makes the first node, add
another one, and skep serve --dir D serves it. Or the map is a file: skep serve --cluster FILE --node NAME. Each block
is on one node, or on as many as the map says replicas.`,
		Args: command.NoArgs,
	}
	cmd.AddCommand(a.clusterInitCommand())
	cmd.AddCommand(remote.ClusterCommands(a.App)...)
	cmd.AddCommand(a.clusterDemoCommand())
	return cmd
}

func (a *app) clusterInitCommand() *cobra.Command {
	f := remote.NodeFlags{}
	group, replicas, downAfter := clustermap.DefaultGroup, 1, "never"
	cmd := &cobra.Command{
		Use:   "init",
		Short: "make a cluster of one node, to which others are added",
		Long: `Makes the directory of a store that of the first node of a cluster, and draws the cluster's seed.
Nothing is served: skep serve --dir D is the node then. skep cluster add, on other machines, adds nodes to it.`,
		Args: command.NoArgs,
	}
	f.Register(cmd.Flags())
	cmd.Flags().StringVar(&f.Node.Name, "node", "", "the node's name (required)")
	cmd.Flags().IntVar(&group, "group", group, "blocks of a chain that stay together, 1 to 1024; it stays as it is")
	cmd.Flags().IntVar(&replicas, "replicas", 1, "nodes that have each block of a chain, 1 to 4, once there are as many")
	cmd.Flags().StringVar(&downAfter, "down-after", downAfter,
		"silence after which a node is down by itself: 10s to 24h, or never")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Node.Name == "" {
			return skep.Invalidf("cluster", "--node", "empty", "the node's name")
		}
		if err := f.Check(); err != nil {
			return err
		}
		if group < 1 || group > clustermap.MaxGroup {
			return skep.Invalidf("cluster", "--group", group, fmt.Sprintf("1 to %d", clustermap.MaxGroup))
		}
		if replicas < 1 || replicas > clustermap.MaxReplicas {
			return skep.Invalidf("cluster", "--replicas", replicas, fmt.Sprintf("1 to %d", clustermap.MaxReplicas))
		}
		silence, err := remote.ParseSilence(downAfter)
		if err != nil {
			return err
		}
		if replicas == 1 {
			replicas = 0 // a map without replicas does not speak of them
		}
		f.Node.ID = 1
		first := &clustermap.Map{Epoch: 1, Group: group, Replicas: replicas, Nodes: []clustermap.Node{f.Node},
			Silence: clustermap.Silence{After: *silence}}
		if _, err := rand.Read(first.Seed[:]); err != nil {
			return err
		}
		log, err := a.Logger()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		defer cancel()
		m, err := member.Found(ctx, f.Dir, first, log)
		if skep.KindOf(err) == skep.Conflict {
			err = command.WithNext(err, "serve it as it is, or give another --dir; "+
				"what is in cluster/ of a directory is that node's, and nobody else's")
		}
		if err != nil {
			return err
		}
		r, err := remote.NewNodeResult(f.Dir, f.Node.Name, m)
		if err != nil {
			return err
		}
		return a.Print(r, r.Text)
	}
	return cmd
}

func (a *app) clusterDemoCommand() *cobra.Command {
	o := clusterdemo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "three nodes on this machine, a workload, and a kill of one",
		Long: `Starts three servers on Unix sockets in a temporary directory, runs a chat workload on all of
them, kills one, goes on without it, and starts it again. It says what was lost and what is
found. Needs no root, 2 GiB of disk and less than two minutes.`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "where the stores are made (default: the system's temporary directory)")
	cmd.Flags().IntVar(&o.Replicas, "replicas", 1, "nodes that have each block, 1 to 3")
	cmd.Flags().IntVar(&o.Requests, "requests", 300, "requests of the workload")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the workload")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Note = a.Note
		r, err := clusterdemo.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		switch {
		case cmd.Context().Err() != nil: // what was under way ended in the middle
			a.Code = command.Interrupted
		case r.Bad():
			a.Code = command.Failed
			fmt.Fprintf(a.Err, "skep: cluster demo: %d wrong bytes, %d broken promises, %d of %d blocks found again: please report it\n",
				r.WrongBytes, r.BrokenPromises, r.Found.After, r.Found.Before)
		}
		return a.Print(r, func(w io.Writer) { clusterDemoTable(w, r) })
	}
	return cmd
}

func clusterDemoTable(w io.Writer, r *clusterdemo.Result) {
	rows := [][]string{}
	for _, n := range r.Nodes {
		rows = append(rows, command.Row("node "+n.Name, fmt.Sprintf("%d blocks, %s", n.Blocks, command.Size(n.Bytes))))
	}
	command.Table(w, append(rows,
		command.Row("requests", fmt.Sprintf("%d; node %s killed with SIGKILL after %d, started again after %d", r.Requests, r.Killed, r.KilledAt, r.BackAt)),
		command.Row("recent blocks found", fmt.Sprintf("%d before the kill, %d without the node, %d when it was back", r.Found.Before, r.Found.Without, r.Found.After)),
		command.Row("hit ratio", fmt.Sprintf("%.3f before, %.3f without, %.3f after", r.HitRatio.Before, r.HitRatio.Without, r.HitRatio.After)),
		command.Row("blocks not put", fmt.Sprintf("%d, for their node, or that of a block before them, was away", r.Declined)),
		command.Row("back after", fmt.Sprintf("%.1f s", r.ReturnSeconds)),
		command.Row("put", command.Size(r.BytesPut)),
		command.Row("restored", command.Size(r.BytesRestored)+", every byte compared"),
		command.Row("wrong bytes", r.WrongBytes),
		command.Row("broken promises", r.BrokenPromises),
		command.Row("seconds", fmt.Sprintf("%.1f", r.Seconds)),
	)...)
}
