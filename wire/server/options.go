package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/gate"
	"github.com/skepkv/skep/wire/turns"
)

// Authenticator says who presents what. An *auth.Directory is one.
type Authenticator interface {
	Identify(ctx context.Context, p auth.Presented) (auth.Identity, error)
}

// Limits of a server. Zero fields get their default.
type Limits struct {
	Body         int           // bytes of a frame's body; 34 MiB, room for 2^20 keys, or a quarter of Memory
	Payload      int           // bytes of a frame's payload; 16 MiB, or an eighth of Memory
	Keys         int           // keys a call may name; 2^20
	Calls        int           // calls of one connection that wait at once, and its sessions; 64
	Connections  int           // 16,384; where Options.Gate is set, that decides
	Memory       int64         // bytes held for calls and sessions under way, all connections together; 256 MiB
	Window       int64         // bytes one session may hold; 16 MiB
	SharedMemory int64         // bytes of all attached memory, which drives may pin; 4 GiB
	Hello        time.Duration // a connection must have authenticated by then; 5 s
	Idle         time.Duration // a connection that says nothing is closed; 5 min
	Stall        time.Duration // a frame that comes or goes, or a session's wait for credit, may be so late; 30 s
	Rate         int           // bytes a second that frames and sessions must at least make besides; 256 KiB
	Call         time.Duration // the longest a call may wait; 10 min
}

// EnsureDefaults gives fields that are zero their default.
func (l *Limits) EnsureDefaults() {
	def(&l.Memory, 256<<20)
	// Clients fill frames up to what the Welcome says, and send four puts at a time.
	def(&l.Body, int(min(34<<20, l.Memory/4)))
	def(&l.Payload, int(min(16<<20, l.Memory/8)))
	def(&l.Keys, skep.MaxChainKeys)
	def(&l.Calls, 64)
	def(&l.Connections, 1<<14)
	def(&l.Window, 16<<20)
	def(&l.SharedMemory, 4<<30)
	def(&l.Hello, 5*time.Second)
	def(&l.Idle, 5*time.Minute)
	def(&l.Stall, 30*time.Second)
	def(&l.Rate, frames.SlowestRate)
	def(&l.Call, 10*time.Minute)
}

func def[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (l *Limits) validate() error {
	for _, f := range []struct {
		field string
		v     int64
		least int64
		most  int64
	}{
		{"memory", l.Memory, 1 << 20, 1 << 50},
		{"body", int64(l.Body), frames.MaxHello, 1 << 30}, {"payload", int64(l.Payload), 4 << 10, 1 << 30},
		{"keys", int64(l.Keys), 1, skep.MaxChainKeys}, {"calls", int64(l.Calls), 1, 1 << 16}, {"rate", int64(l.Rate), 1, 1 << 40},
		{"connections", int64(l.Connections), 1, 1 << 24},
		{"window", l.Window, frames.LeastWindow, 1 << 40}, {"shared memory", l.SharedMemory, 0, 1 << 50},
		{"hello", int64(l.Hello), int64(time.Millisecond), int64(time.Hour)}, {"idle", int64(l.Idle), int64(time.Millisecond), 1 << 62},
		{"stall", int64(l.Stall), int64(time.Millisecond), 1 << 62}, {"call", int64(l.Call), int64(time.Millisecond), 1 << 62},
	} {
		if f.v < f.least || f.v > f.most {
			return skep.Invalidf("serve", "limit "+f.field, f.v, skep.Range{From: int(f.least), To: int(f.most)})
		}
	}
	return nil
}

// Options of New. The zero value works: everybody is the default tenant, so
// listen where only this machine's users reach.
type Options struct {
	Auth   Authenticator // nil: an open auth.Directory
	Limits Limits
	Gate   *gate.Gate    // what connections are counted at; nil: one of its own, for Limits.Connections of TCP
	Name   string        // told to clients
	Turns  *turns.Turns  // by which frames of payload are written; nil: the server's own, for its processors
	Drain  time.Duration // how long Serve waits for calls under way when its context ends; 10 s
	Log    *slog.Logger  // discarded when nil
	// Admin carries out administrative calls of operators (auth.Operator); nil:
	// Unsupported.
	Admin func(ctx context.Context, who auth.Identity, name string, in json.RawMessage) (json.RawMessage, error)
	// ClusterMap is the map of the cluster that the Store is a node of, which clients are told (package replication); nil:
	// it is of none, and that is Unsupported. Epoch is the map's, 1 or more, with which requests are compared. SetCluster
	// changes both.
	ClusterMap []byte
	Epoch      uint32
	// Copies is how many copies a namespace has that is made by who leaves it to the server (0); nil: 1.
	Copies func(namespace string) int
	Node   string // which of the map's nodes it is, by name; "": clients are not told
	// Cluster is the map's seed, and NodeID which of its nodes it is; "": clients are not told either.
	Cluster string
	NodeID  uint64
	// Idle says whether clients have left, for Stats; nil: that is not known.
	Idle func() bool
	// Tracer makes a span of every call, below which the Store's are; nil: none are made.
	Tracer trace.Tracer
	// Observe is told of every call that ended. It must not block.
	Observe func(Call)
}

// Call is one call a server carried out or refused.
type Call struct {
	Type   frames.Type
	Tenant string
	Client string // as it calls itself; nobody has checked it
	Began  time.Time
	Took   time.Duration
	Bytes  int64 // of the call's payload
	Err    error // nil when it was carried out
}

// Stats is how a server stands.
type Stats struct {
	Connections int   `json:"connections"`
	Accepted    int64 `json:"accepted"`
	Refused     int64 `json:"refused"` // connections
	Sessions    int   `json:"sessions"`
	Streams     int   `json:"streams"`
	Calls       int64 `json:"calls"`
	Shed        int64 `json:"shed"` // calls
	Memory      int64 `json:"memory"`
	MemoryCap   int64 `json:"memory_cap"`
	Leases      int   `json:"leases"`
	SentBytes   int64 `json:"sent_bytes"` // payload
	TakenBytes  int64 `json:"taken_bytes"`
	Regions     int   `json:"regions"` // of shared memory
	// SharedBytes are the bytes of attached memory, regions and files of engines.
	SharedBytes int64 `json:"shared_bytes"`
	// Leaving are the files of engines whose clients wait until nothing uses them any more.
	Leaving int `json:"leaving"`
}
