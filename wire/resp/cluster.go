package resp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Clients in cluster mode deal keys to servers by slots. Here every server of a cluster answers for every key, so the slots
// are dealt for the load alone: by weight, to those that answer.

// Cluster is servers that answer for each other's keys, as one of them knows them now.
type Cluster struct {
	Epoch uint64
	Self  string // ID of this one
	Nodes []ClusterNode
}

// ClusterNode is one server.
type ClusterNode struct {
	ID     string // 40 hexadecimal digits, the same as long as it is of the cluster
	Host   string
	Port   int
	Weight int  // its share of the slots, beside the others'
	Away   bool // it does not answer, and gets none
}

// slotCount is how many slots there are.
const slotCount = 1 << 14

// slots are successive slots.
type slots struct{ from, to int } // to is one too far

// deal gives each node its slots: the same as long as all are there, and of what one has that is away every other
// one a part.
func deal(nodes []ClusterNode) [][]slots {
	out := make([][]slots, len(nodes))
	share := func(of slots, to func(i int) bool, give func(i int, s slots)) {
		total, sum := 0, 0
		for i := range nodes {
			if to(i) {
				total += nodes[i].Weight
			}
		}
		at := of.from
		for i := range nodes {
			if to(i) {
				sum += nodes[i].Weight
				if end := of.from + (of.to-of.from)*sum/total; end > at {
					give(i, slots{at, end})
					at = end
				}
			}
		}
	}
	there := func(i int) bool { return !nodes[i].Away }
	give := func(i int, s slots) {
		if n := len(out[i]); n > 0 && out[i][n-1].to == s.from {
			out[i][n-1].to = s.to
			return
		}
		out[i] = append(out[i], s)
	}
	share(slots{0, slotCount}, func(int) bool { return true }, func(i int, s slots) {
		if there(i) {
			give(i, s)
		} else {
			share(s, there, give)
		}
	})
	return out
}

// slotOf is a key's slot: CRC-16 (XMODEM) of what is between its first { and the next }, or of all where nothing is.
func slotOf(key []byte) int {
	if open := bytes.IndexByte(key, '{'); open >= 0 {
		if n := bytes.IndexByte(key[open+1:], '}'); n > 0 {
			key = key[open+1 : open+1+n]
		}
	}
	crc := uint16(0)
	for _, b := range key {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slotCount
}

const errNoCluster = replyError("ERR This instance has cluster support disabled")

// cluster is the servers that there are now; nil: this is one of its own.
func (c *conn) cluster(ctx context.Context) *Cluster {
	if c.s.o.Cluster == nil {
		return nil
	}
	return c.s.o.Cluster(ctx)
}

// mode is what clients are told that choose by it how to speak to servers.
func (c *conn) mode(ctx context.Context) string {
	if c.cluster(ctx) == nil {
		return "standalone"
	}
	return "cluster"
}

// cmdSlotMode is READONLY, READWRITE and ASKING, which change nothing where every server answers.
func (c *conn) cmdSlotMode(ctx context.Context, _ command) error {
	if c.cluster(ctx) == nil {
		return c.fail(errNoCluster)
	}
	c.ok()
	return nil
}

// cmdCluster is CLUSTER.
func (c *conn) cmdCluster(ctx context.Context, cmd command) error {
	of := c.cluster(ctx)
	if of == nil {
		return c.fail(errNoCluster)
	}
	switch sub := upper(cmd.args[1]); {
	case sub == "SLOTS" && len(cmd.args) == 2:
		c.clusterSlots(of)
	case sub == "SHARDS" && len(cmd.args) == 2:
		c.clusterShards(of)
	case sub == "NODES" && len(cmd.args) == 2:
		c.text(of.lines())
	case sub == "INFO" && len(cmd.args) == 2:
		c.text(of.info())
	case sub == "MYID" && len(cmd.args) == 2:
		c.text(of.Self)
	case sub == "KEYSLOT" && len(cmd.args) == 3:
		c.int(int64(slotOf(cmd.args[2])))
	default:
		return c.fail(replyError("ERR unknown subcommand or wrong number of arguments for 'cluster|" +
			strings.ToLower(printable(sub)) + "': slots, shards, nodes, info, myid and keyslot are there"))
	}
	return c.flushIfLarge()
}

func (c *conn) clusterSlots(of *Cluster) {
	type given struct {
		slots
		node *ClusterNode
	}
	var all []given
	for i, list := range deal(of.Nodes) {
		for _, s := range list {
			all = append(all, given{s, &of.Nodes[i]})
		}
	}
	slices.SortFunc(all, func(a, b given) int { return a.from - b.from })
	c.array(len(all))
	for _, g := range all {
		c.array(3)
		c.int(int64(g.from))
		c.int(int64(g.to - 1))
		c.array(4)
		c.text(g.node.Host)
		c.int(int64(g.node.Port))
		c.text(g.node.ID)
		c.array(0)
	}
}

func (c *conn) clusterShards(of *Cluster) {
	dealt := deal(of.Nodes)
	c.array(len(of.Nodes))
	for i := range of.Nodes {
		n := &of.Nodes[i]
		c.fields(2)
		c.text("slots")
		c.array(2 * len(dealt[i]))
		for _, s := range dealt[i] {
			c.int(int64(s.from))
			c.int(int64(s.to - 1))
		}
		c.text("nodes")
		c.array(1)
		c.fields(7)
		for _, f := range [][2]string{{"id", n.ID}, {"ip", n.Host}, {"endpoint", n.Host}, {"role", "master"}, {"health", n.health()}} {
			c.text(f[0])
			c.text(f[1])
		}
		c.text("port")
		c.int(int64(n.Port))
		c.text("replication-offset")
		c.int(0)
	}
}

func (n *ClusterNode) health() string {
	if n.Away {
		return "failed"
	}
	return "online"
}

// lines is CLUSTER NODES.
func (of *Cluster) lines() string {
	var b strings.Builder
	for i, list := range deal(of.Nodes) {
		n := &of.Nodes[i]
		flags, link := "master", "connected"
		if n.ID == of.Self {
			flags = "myself,master"
		}
		if n.Away {
			flags, link = flags+",fail", "disconnected"
		}
		fmt.Fprintf(&b, "%s %s:%d@0 %s - 0 0 %d %s", n.ID, n.Host, n.Port, flags, of.Epoch, link)
		for _, s := range list {
			b.WriteByte(' ')
			b.WriteString(strconv.Itoa(s.from))
			if s.to-1 > s.from {
				fmt.Fprintf(&b, "-%d", s.to-1)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// info is CLUSTER INFO.
func (of *Cluster) info() string {
	there := 0
	for i := range of.Nodes {
		if !of.Nodes[i].Away {
			there++
		}
	}
	var b strings.Builder
	for _, f := range []struct {
		name  string
		value any
	}{
		{"cluster_state", "ok"}, {"cluster_slots_assigned", slotCount}, {"cluster_slots_ok", slotCount},
		{"cluster_slots_pfail", 0}, {"cluster_slots_fail", 0}, {"cluster_known_nodes", len(of.Nodes)}, {"cluster_size", there},
		{"cluster_current_epoch", of.Epoch}, {"cluster_my_epoch", of.Epoch},
		{"cluster_stats_messages_sent", 0}, {"cluster_stats_messages_received", 0},
	} {
		fmt.Fprintf(&b, "%s:%v\r\n", f.name, f.value)
	}
	return b.String()
}
