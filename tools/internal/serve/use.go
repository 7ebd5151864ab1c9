package serve

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/idle"
	"github.com/skepkv/skep/wire/frames"
	wireserver "github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/watch"
)

// nodeName is what the names begin with by which nodes call themselves where they speak to others.
const nodeName = "node "

// use is what clients have the node do: by it the node decides how much of itself repairs may have, and tells the
// others.
type use struct {
	done  atomic.Int64 // by calls that have ended, in bytes; what restores sent is counted by the server of the protocol
	meter idle.Meter
}

// asked notes a call of the binary protocol. Other nodes look up and restore for their own clients, and put mostly what
// a repair sends: who puts by another node is a client of that one, which hears of it. Whatever else they ask is about
// repairs.
func (u *use) asked(c *wireserver.Call) {
	switch c.Type {
	case frames.TypeLookup, frames.TypeLookupRuns, frames.TypeRestore, frames.TypeCostedRestore:
		u.done.Add(idle.Call)
	case frames.TypePut, frames.TypePutEach, frames.TypeWrite, frames.TypeCommit:
		if !strings.HasPrefix(c.Client, nodeName) {
			u.done.Add(idle.Call + c.Bytes)
		}
	}
}

// observe records a call of the binary protocol.
func (s *server) observe(c wireserver.Call) {
	outcome := watch.OK
	if c.Err != nil {
		outcome = watch.Error
		if skep.KindOf(c.Err) == skep.Overloaded {
			outcome = watch.Shed
		}
	}
	s.use.asked(&c)
	s.watch.Record(watch.Call{Protocol: "wire", Name: c.Type.String(), Tenant: c.Tenant, Outcome: outcome,
		Start: c.Began, Duration: c.Took, Bytes: c.Bytes})
}

// told notes a call of another protocol. Most of what HTTP is asked comes from people, and from who watches the node.
func (u *use) told(c watch.Call) {
	if c.Protocol == "resp" || c.Protocol == "http" && (c.Name == "lookup" || c.Name == "route") {
		u.done.Add(idle.Call + c.Bytes)
	}
}

// idle says whether clients have left this node.
func (s *server) idle() bool {
	st := s.wire.Stats()
	return s.use.meter.See(time.Now(), s.use.done.Load()+st.SentBytes, st.Sessions > 0)
}
