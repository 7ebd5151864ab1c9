package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire"
)

// RepairResult is what cluster repair prints.
type RepairResult struct {
	Epoch   uint32         `json:"epoch"`   // of the map that the asked node had
	Missing int64          `json:"missing"` // copies that their nodes have not yet, as far as is known
	Staying int64          `json:"staying"` // blocks of nodes that are out, which no repair moves
	Nodes   []RepairedNode `json:"nodes"`   // of the map
}

// RepairedNode is what one node sent to others.
type RepairedNode struct {
	Name    string  `json:"name"`            // its name
	State   string  `json:"state,omitempty"` // of the map: out or down; absent where it is up
	Seconds float64 `json:"seconds"`         // how long it took
	Error   string  `json:"error,omitempty"` // why it did not repair, or not all; absent where it did
	replication.Repaired
}

// repairPoll is how often nodes are asked how far they are.
const repairPoll = 200 * time.Millisecond

func clusterRepairCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "have every node send the others the copies that they should have and do not",
		Long: `Has each node look at the blocks of chains that it has, ask the nodes that should have them by the map, and
send them to those that have none, at the node's peers.repair_rate or, while clients use neither node, its
peers.repair_idle_rate. They do so by themselves, too: when the map changes, when a node was started, and every
peers.repair_every. Left out are salted blocks, which only who has the salt can place, and keys that stand alone: of
these nothing says which of two values is the later. Interrupted, this command stops waiting, and the nodes go on. Exit
code 6: something is missing yet, a node did not answer, or one that is out has blocks that are left out,
which are lost with it.`,
		Args: command.NoArgs,
	}
	return newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		text, err := r.c.ClusterMap(ctx)
		if err != nil {
			if skep.KindOf(err) == skep.Unsupported {
				err = command.WithNext(err, "that server is a node of no cluster: name one with --server")
			}
			return err
		}
		m, err := clustermap.Parse(text)
		if err != nil {
			return err
		}
		r.target.warnOfNodes(m)
		out := RepairResult{Epoch: m.Epoch, Nodes: make([]RepairedNode, len(m.Nodes))}
		var mu sync.Mutex
		told := time.Now()
		var wait sync.WaitGroup
		for i, n := range m.Nodes { // before one is told of, which looks at all
			out.Nodes[i].Name, out.Nodes[i].State = n.Name, string(n.State)
		}
		for i, n := range m.Nodes {
			wait.Go(func() {
				x := &out.Nodes[i]
				err := r.repairNode(ctx, &n, m.Epoch, func(s member.Repair) {
					mu.Lock()
					defer mu.Unlock()
					x.Repaired, x.Error = s.Repaired, s.Error
					if x.Seconds = s.Ended.Sub(s.Began).Seconds(); s.Ended.IsZero() {
						x.Seconds = time.Since(s.Began).Seconds()
					}
					if s.Running && time.Since(told) > 2*time.Second {
						told = time.Now()
						sum := sumOf(out.Nodes)
						r.Note("%d blocks looked at, %d copies sent (%s)", sum.Blocks, sum.Copied, command.Size(sum.Bytes))
					}
				})
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					x.Error = err.Error()
				}
			})
		}
		wait.Wait()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sum := sumOf(out.Nodes)
		out.Missing = sum.Declined + sum.Away + sum.Unread
		bad := out.Missing > 0
		for _, n := range out.Nodes {
			if n.State == string(clustermap.Out) {
				out.Staying += n.LeftOut
			}
			bad = bad || n.Error != ""
		}
		bad = bad || out.Staying > 0
		if bad {
			r.Code = command.Faults
		}
		return r.Print(out, func(w io.Writer) { repairText(w, &out) })
	})
}

func sumOf(nodes []RepairedNode) (sum replication.Repaired) {
	for _, n := range nodes {
		sum.Blocks += n.Blocks
		sum.Copied += n.Copied
		sum.Bytes += n.Bytes
		sum.Declined += n.Declined
		sum.Away += n.Away
		sum.Strays += n.Strays
		sum.Unread += n.Unread
		sum.LeftOut += n.LeftOut
	}
	return sum
}

// staleWait is until a node that repaired by an older map than the asked node's is asked again, staleTries times.
const (
	staleWait  = 500 * time.Millisecond
	staleTries = 4
)

// repairNode has a node repair by the map of that epoch or a later one, and waits until it has; told is called with how
// it stands, and with what earlier rounds sent. One that keeps to an older map has moved nothing of what the newer one
// has elsewhere. One that the map has down is to send nothing, if it runs, and says so by epoch 0.
func (r *remote) repairNode(ctx context.Context, n *clustermap.Node, epoch uint32, told func(member.Repair)) error {
	o := r.target.options("skep")
	o.Addr = n.Addr
	c, err := wire.Dial(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	want := int64(0) // the number of the first that begins after it was asked for; 0: it was not yet
	var sent replication.Repaired
	for stale := 0; ; {
		wait := repairPoll
		in, err := json.Marshal(member.AskRepair{Begin: want == 0})
		if err != nil {
			return err
		}
		b, err := c.Admin(ctx, "cluster repair", in)
		if err != nil {
			return err
		}
		var s member.Repairs
		var by struct {
			Last struct {
				Epoch *uint32 `json:"epoch"` // nil: the node's version has none
			} `json:"last"`
		}
		if err := errors.Join(json.Unmarshal(b, &s), json.Unmarshal(b, &by)); err != nil {
			return err
		}
		switch {
		case want == 0:
			want = s.Next
		case s.Next < want: // it was started again, and counts anew: what it was asked for is forgotten
			want = 0
		case s.Last != nil && s.Last.Number >= want:
			s.Last.Copied, s.Last.Bytes = s.Last.Copied+sent.Copied, s.Last.Bytes+sent.Bytes
			told(*s.Last)
			switch by := by.Last.Epoch; {
			case s.Last.Error != "":
				return nil
			case by == nil:
				return errors.New("it does not say by which map it went: its version is older than this command's")
			case *by >= max(epoch, 1), *by == 0 && n.State == clustermap.Down:
				return nil
			case stale < staleTries:
				stale, want, wait, sent = stale+1, 0, staleWait, s.Last.Repaired
			case *by == 0:
				return errors.New("it sent nothing: its own map has it down or not at all")
			default:
				return fmt.Errorf("it went by the map of epoch %d, and the asked node has epoch %d", *by, epoch)
			}
		case s.Running && s.Number >= want:
			s.Copied, s.Bytes = s.Copied+sent.Copied, s.Bytes+sent.Bytes
			told(s.Repair)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func repairText(w io.Writer, r *RepairResult) {
	rows := [][]string{command.Row("node", "blocks", "copies sent", "bytes", "declined", "node away", "not read", "strays",
		"left out", "seconds")}
	for _, n := range r.Nodes {
		rows = append(rows, command.Row(n.Name, n.Blocks, n.Copied, command.Size(n.Bytes), n.Declined, n.Away, n.Unread,
			n.Strays, n.LeftOut, fmt.Sprintf("%.1f", n.Seconds)))
	}
	command.Table(w, rows...)
	if sum := sumOf(r.Nodes); sum.LeftOut > 0 {
		fmt.Fprintf(w, "%d blocks were left out, which no node can send: salted ones, of which who has the salt makes "+
			"missing copies by the next put, and keys that stand alone\n", sum.LeftOut)
	}
	failed := false
	for _, n := range r.Nodes {
		if n.State == string(clustermap.Out) && n.LeftOut > 0 {
			fmt.Fprintf(w, "node %s is out and has %d of these: where nobody has put them again, they are lost when it is "+
				"removed\n", n.Name, n.LeftOut)
		}
		if n.Error != "" {
			fmt.Fprintf(w, "node %s: %s\n", n.Name, n.Error)
			failed = true
		}
	}
	switch {
	case failed:
		fmt.Fprintln(w, "not every node has looked at all that it has: give the command again when they answer")
	case r.Missing == 0 && r.Staying == 0:
		fmt.Fprintf(w, "every block that was looked at is where the map of epoch %d says\n", r.Epoch)
	case r.Missing > 0:
		fmt.Fprintf(w, "%d copies are missing yet: their nodes were away, or have no room to spare "+
			"(skep cluster status, skep status), or the blocks could not be read (skep scrub)\n", r.Missing)
	}
}
