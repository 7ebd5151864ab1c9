package consensus

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// manyTimes are lines that raft writes many times a second for as long as a node is away, which away says once, or not in
// the map; and with each connection that ends, as all do when a node stops.
var manyTimes = []string{
	"failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC", "failed to contact",
	"unable to get address for server", "failed to decode incoming command",
}

// away tells, where this node leads, which nodes do not answer, and which do again.
type away struct {
	log  *slog.Logger
	name func(raft.ServerID) string // of a node, by the map

	mu    sync.Mutex
	nodes map[raft.ServerID]bool
}

// observe takes what raft tells of itself.
func (a *away) observe(what any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch what := what.(type) {
	case raft.FailedHeartbeatObservation:
		if !a.nodes[what.PeerID] {
			a.nodes[what.PeerID] = true
			a.log.Warn("a node of the cluster does not answer", "node", a.name(what.PeerID), "id", what.PeerID)
		}
	case raft.ResumedHeartbeatObservation:
		if a.nodes[what.PeerID] {
			delete(a.nodes, what.PeerID)
			a.log.Info("a node of the cluster answers again", "node", a.name(what.PeerID), "id", what.PeerID)
		}
	case raft.RaftState: // another one leads, or nobody
		clear(a.nodes)
	}
}

// lines gives raft's log to a slog.Logger, line by line.
type lines struct{ log *slog.Logger }

// Write implements io.Writer.
func (l lines) Write(b []byte) (int, error) {
	text := strings.TrimSpace(string(b))
	level := slog.LevelDebug // what goes as it should, and is told of in the map
	if rest, ok := strings.CutPrefix(text, "[WARN]"); ok {
		level, text = slog.LevelWarn, rest
	} else if rest, ok := strings.CutPrefix(text, "[ERROR]"); ok {
		level, text = slog.LevelError, rest
	} else if _, rest, ok := strings.Cut(text, "]"); ok {
		text = rest
	}
	for _, often := range manyTimes {
		if strings.Contains(text, often) {
			level = slog.LevelDebug
		}
	}
	l.log.Log(context.Background(), level, strings.TrimSpace(text))
	return len(b), nil
}

func hclogOf(log *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: lines{log}, DisableTime: true})
}
