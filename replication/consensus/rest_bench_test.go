//go:build unix

package consensus

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// BenchmarkAtRest tells what it costs that the leader hears every node of the map, over TCP on loopback, in milliseconds
// of processor a second: of all nodes together, which are in this process, and of each but the leader, had it half of
// what hearing it costs.
func BenchmarkAtRest(b *testing.B) {
	for _, nodes := range []int{1, 3, 30, 100} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			first := mapOf(nodes)
			var at []net.Listener
			for i := range first.Nodes {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(b, err)
				at = append(at, l)
				first.Nodes[i].Peer = l.Addr().String()
			}
			var members []*Member
			for i, l := range at {
				o := Options{ID: uint64(i + 1), Dir: "raft", Listener: l, Logger: quiet, FS: vfs.NewMem(),
					SnapshotsIn: func(string) (raft.SnapshotStore, error) { return raft.NewInmemSnapshotStore(), nil }}
				if i == 0 {
					o.Found = first
				}
				m, err := Open(o)
				require.NoError(b, err)
				defer m.Close()
				members = append(members, m)
			}
			for _, m := range members { // each has the map
				for m.Map() == nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
			time.Sleep(2 * time.Second)
			began, before := time.Now(), processor(b)
			for b.Loop() {
				time.Sleep(5 * time.Second)
			}
			each := float64(processor(b)-before) / float64(time.Since(began)) * 1000
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(each, "ms/s")
			b.ReportMetric(each/float64(max(2*(nodes-1), 1)), "ms/s-a-node")
		})
	}
}

// processor is how long this process has computed.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
