package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store"
)

// Stopped is a node that does not run, and what it knows.
type Stopped struct {
	Identity
	consensus.Kept // Map is not nil: where the log has none yet, it is the one that the node was told
}

// Look says what the node of a store's directory knows, and changes nothing.
//
// Errors: NotFound (the directory is no node's), Locked (the node runs), Damaged, Version, Failed.
func Look(dir string, log *slog.Logger) (*Stopped, error) {
	h, err := holdNode(dir, log, true)
	if err != nil {
		return nil, err
	}
	return h.node, h.release()
}

// held is a node that does not run, and that nobody starts meanwhile.
type held struct {
	node    *Stopped
	told    *clustermap.Map // the one that is kept for the next start
	options consensus.Options
	release func() error
}

func holdNode(dir string, log *slog.Logger, looking bool) (_ *held, err error) {
	id, told, err := Read(dir)
	if err != nil {
		return nil, err
	}
	if id == nil {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "directory", Value: dir,
			Limit: "that of a node (skep cluster init and add make it one)"}
	}
	h := &held{told: told, options: consensus.Options{ID: id.ID, Dir: Dir(dir), Logger: log}}
	if h.release, err = store.Hold(dir, looking); err != nil {
		return nil, err
	}
	kept, err := consensus.Read(h.options)
	if err != nil {
		return nil, errors.Join(err, h.release())
	}
	if kept.Map == nil {
		kept.Map = told
	}
	h.node = &Stopped{*id, kept}
	return h, nil
}

// goesBy keeps a map for the node's next start, unless it has it. A crash before that leaves an older one, and the node
// starts by that until it knows more.
func (h *held) goesBy(dir string, m *clustermap.Map) error {
	if h.told.Epoch >= m.Epoch {
		return nil
	}
	return WriteMap(dir, m)
}

// Recovery asks for a cluster to be recovered that has lost most of its voters for good.
type Recovery struct {
	Dir    string   // of the store of the node that goes on, which does not run
	Lost   []string // names of the nodes that are lost
	DryRun bool     // nothing is changed
	Logger *slog.Logger
	// Dial connects to a peer address; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Recovered says what a node is, or would be with DryRun.
type Recovered struct {
	Node Identity
	From uint32          // epoch of the newest map that the node knew
	Map  *clustermap.Map // by which it goes on
}

// Recover has a node be the only voter of a cluster of another identity, with the newest map that it knows, but for the
// nodes that are lost. It may be called again where it was cut off, and then changes no more than was left to do.
//
// Errors: those of consensus.Recover and Look, Conflict (a node that is said to be lost answers at its peer address).
func Recover(ctx context.Context, r Recovery) (out Recovered, err error) {
	h, err := holdNode(r.Dir, r.Logger, r.DryRun)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.release()) }()
	would, err := consensus.Recover(h.options, r.Lost, true)
	if err != nil {
		return out, err
	}
	if err := r.silent(ctx, h.node.Map); err != nil {
		return out, err
	}
	out = Recovered{h.node.Identity, would.From, would.Map}
	if r.DryRun {
		return out, nil
	}
	done, err := consensus.Recover(h.options, r.Lost, false)
	if err != nil {
		return out, err
	}
	out.Map = done.Map
	return out, h.goesBy(r.Dir, out.Map)
}

// How long nodes that are lost may take to show that they are not, and how many are asked at a time.
const (
	signPatience = 2 * time.Second
	askedAtOnce  = 32
)

// silent refuses a recovery without a node that answers at its peer address.
func (r *Recovery) silent(ctx context.Context, m *clustermap.Map) error {
	dial := r.Dial
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	var mu sync.Mutex
	var found []clustermap.Node
	var wait sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, n := range m.Nodes {
		if !slices.Contains(r.Lost, n.Name) || n.Peer == "" {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, signPatience)
			defer cancel()
			if c, err := dial(ctx, n.Peer); err == nil {
				_ = c.Close()
				mu.Lock()
				found = append(found, n)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(found) > 0 {
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "lost node", Value: found[0].Name,
			Limit: "one that does not answer: it does, at " + found[0].Peer}
	}
	return nil
}

// AskRejoin is what a node that was left behind asks a server of the recovered cluster: whether it goes on from the
// cluster that the node is of, and still has the node.
type AskRejoin struct {
	ID      uint64 `json:"id"`
	Name    string `json:"name"`
	Cluster string `json:"cluster"`
}

// Rejoined is the answer: the recovered map, its cluster, and the epoch of the map that it goes on from, with the term of
// the last change of that; 0: the node is of that cluster already.
type Rejoined struct {
	Map     *clustermap.Map `json:"map"`
	Cluster string          `json:"cluster"`
	From    uint32          `json:"from"`
	Term    uint64          `json:"term"`
}

// Rejoin has a node that does not run be one of the cluster that was recovered from its own, by what ask says. It keeps
// its number, name and store, and has agreed to nothing yet. It may be called again where it was cut off; dry: nothing
// is changed.
//
// Errors: those of Look and of ask, Conflict (the node knows changes that were made after what the recovered cluster
// goes on from), Invalid (the answer).
func Rejoin(ctx context.Context, dir string, log *slog.Logger, dry bool,
	ask func(context.Context, AskRejoin) (Rejoined, error)) (out Recovered, err error) {
	h, err := holdNode(dir, log, dry)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.release()) }()
	n := h.node
	got, err := ask(ctx, AskRejoin{n.ID, n.Name, n.Cluster})
	if err != nil {
		return out, err
	}
	if got.Map == nil || got.Cluster == "" {
		return out, skep.Invalidf(op, "answer", "no map or no cluster", "the recovered map, and its cluster")
	}
	if is, err := got.Map.Node(n.Name); err != nil || is.ID != n.ID {
		return out, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node", Value: n.Name, Limit: "one of the recovered map"}
	}
	out = Recovered{n.Identity, max(n.Map.Epoch, h.told.Epoch), got.Map}
	newer := n.Term > got.Term || n.Term == got.Term && n.Map.Epoch > got.From || h.told.Epoch > got.From
	if got.Cluster != n.Cluster && newer {
		return out, &skep.Error{Op: op, Kind: skep.Conflict, Field: "epoch and term of the map that the node knows",
			Value: fmt.Sprintf("%d, %d", out.From, n.Term), Limit: fmt.Sprintf("%d, %d", got.From, got.Term)}
	}
	if dry {
		return out, nil
	}
	if err := consensus.Adopt(h.options, got.Cluster); err != nil {
		return out, err
	}
	return out, h.goesBy(dir, got.Map)
}
