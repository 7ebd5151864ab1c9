package member

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/store/atomicfile"
)

const op = "cluster node"

// format is that of node.json.
const format = 1

// maxIdentity is how large node.json may be, in bytes.
const maxIdentity = 16 << 10

// Identity is who a node is. Addr and Peer are what it was founded or added with; the map says where it is now.
type Identity struct {
	Format int    `json:"format"`
	ID     uint64 `json:"id"`
	Name   string `json:"name"`
	Addr   string `json:"addr"`
	Peer   string `json:"peer"`
	// Store is the id of the store that the node has; empty: not known yet.
	Store string `json:"store,omitempty"`
}

// write keeps who the node is.
func (id *Identity) write(store string) error {
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return replace(filepath.Join(Dir(store), "node.json"), b)
}

// Added is what a server answers to who adds a node: the map that has it, and which cluster has taken it in.
type Added struct {
	Map     *clustermap.Map `json:"map"`
	Cluster string          `json:"cluster"` // consensus.Member.Cluster
}

// Removed is what it answers to who removes one: the epoch of the map that lacks it, and whether it may still be one of
// the voters that the others need.
type Removed struct {
	Epoch uint32 `json:"epoch"`
	Votes bool   `json:"votes"`
}

// Change is what is set of a node, and of the cluster: what is empty, 0 or nil stays.
type Change struct {
	Name   string            `json:"name,omitempty"`
	Addr   string            `json:"addr,omitempty"`
	Peer   string            `json:"peer,omitempty"`
	RESP   string            `json:"resp,omitempty"`
	Weight int               `json:"weight,omitempty"`
	State  *clustermap.State `json:"state,omitempty"`
	// DownAfter is the silence after which a node is down by itself, in seconds; 0: never.
	DownAfter *uint32 `json:"down_after,omitempty"`
	// Unencrypted is a tenant that no node encrypts any more, clustermap.EveryTenant for those without a key of their own.
	// Which commands make it so says the map.
	Unencrypted string `json:"unencrypted,omitempty"`
}

// Commands are those that make the change, one after the other.
func (c *Change) Commands() (out []clustermap.Command) {
	if c.Addr+c.Peer+c.RESP != "" {
		out = append(out, clustermap.Command{Do: clustermap.SetAddress, Name: c.Name, Addr: c.Addr, Peer: c.Peer, RESP: c.RESP})
	}
	if c.Weight != 0 {
		out = append(out, clustermap.Command{Do: clustermap.SetWeight, Name: c.Name, Weight: c.Weight})
	}
	if c.DownAfter != nil {
		out = append(out, clustermap.Command{Do: clustermap.SetSilence, After: *c.DownAfter})
	}
	if c.State != nil {
		out = append(out, clustermap.Command{Do: clustermap.SetState, Name: c.Name, State: *c.State})
	}
	return out
}

// Changed is what a server answers to who changes one: the epoch of the map that has it so.
type Changed struct {
	Epoch uint32 `json:"epoch"`
}

// AskRepair asks a server how its repair stands, and has it begin one.
type AskRepair struct {
	Begin bool `json:"begin"`
}

// Repair is one repair of a node: the one under way, or one that has ended.
type Repair struct {
	Running bool      `json:"running"`
	Number  int64     `json:"number"` // in the order in which they began, from 1 on; 0: none has
	Runs    int64     `json:"runs"`   // that have ended
	Began   time.Time `json:"began"`  // zero: none has
	Ended   time.Time `json:"ended"`  // zero: not yet
	Error   string    `json:"error,omitempty"`
	Rate    int64     `json:"rate"` // bytes a second that it kept to last; 0: it has sent nothing
	replication.Repaired
}

// RateNow is what the one under way keeps to, in bytes a second; 0: none is, or it has sent nothing.
func (r *Repair) RateNow() int64 {
	if !r.Running {
		return 0
	}
	return r.Rate
}

// Repairs is how a node's repairs stand, and its answer to AskRepair, of the moment before it begins one.
type Repairs struct {
	Repair         // the one under way, or the one that ended last
	Next   int64   `json:"next"`           // Number of the first that begins from now on
	Last   *Repair `json:"last,omitempty"` // the last that ended and that nobody stopped; absent: none has
}

// Dir is where a store's directory has what belongs to the cluster.
func Dir(store string) string { return filepath.Join(store, "cluster") }

// Read gives the node that a store's directory is of, and the map that it knew last; nil where it is of none.
//
// Errors: Failed (a file cannot be read), Damaged, Version.
func Read(store string) (*Identity, *clustermap.Map, error) {
	path := filepath.Join(Dir(store), "node.json")
	b, err := readFile(path, maxIdentity)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var id Identity
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := json.Unmarshal(b, &struct {
		Format *int `json:"format"`
	}{&id.Format}); err != nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "file", Value: path, Err: err}
	}
	if id.Format != format {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Version, Field: "format of " + path,
			Value: id.Format, Limit: format}
	}
	if err := d.Decode(&id); err != nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "file", Value: path, Err: err}
	}
	if id.ID == 0 || id.Name == "" || id.Addr == "" || id.Peer == "" {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "file", Value: path,
			Limit: "an id, a name and addresses"}
	}
	log := filepath.Join(Dir(store), "log")
	if _, err := os.Stat(log); err != nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "directory", Value: log,
			Limit: "what the node has agreed to: without it, remove the node (skep cluster remove) " +
				"and add it anew, in an empty directory", Err: err}
	}
	path = filepath.Join(Dir(store), "map.json")
	if b, err = readFile(path, clustermap.MaxBytes); err != nil {
		return nil, nil, err
	}
	m, err := clustermap.Decode(b)
	if err != nil {
		return nil, nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "file", Value: path, Err: err}
	}
	return &id, m, nil
}

// readFile reads a file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > limit {
		return nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of " + path, Value: info.Size(), Limit: limit}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Failed, Field: "file", Value: path, Err: err}
	}
	return b, nil
}

// WriteMap keeps the map for the next start. A crash leaves the old one or this one.
func WriteMap(store string, m *clustermap.Map) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	return replace(filepath.Join(Dir(store), "map.json"), b)
}

// replace writes a file anew, durably.
func replace(path string, b []byte) error {
	if err := atomicfile.Write(path, b); err != nil {
		return &skep.Error{Op: op, Kind: skep.Failed, Field: "file", Value: path, Err: err}
	}
	return nil
}

// prepare makes the directory of a node that is to be, and refuses one that is of a cluster.
func prepare(store string) error {
	if store == "" {
		return skep.Invalidf(op, "directory", "empty", "that of the store which the node is to have")
	}
	id, _, err := Read(store)
	if err != nil {
		return err
	}
	if id != nil {
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "directory", Value: Dir(store),
			Limit: fmt.Sprintf("that of no node: it is node %s's", id.Name)}
	}
	if err := os.MkdirAll(Dir(store), 0o700); err != nil {
		return &skep.Error{Op: op, Kind: skep.Failed, Field: "directory", Value: Dir(store), Err: err}
	}
	return errors.Join(atomicfile.SyncDir(store), atomicfile.SyncDir(filepath.Dir(store)))
}

// finish has the directory be the node's. The identity comes last: without it, it is of no cluster.
func finish(store string, n clustermap.Node, m *clustermap.Map, has string) error {
	if err := WriteMap(store, m); err != nil {
		return err
	}
	id := Identity{Format: format, ID: n.ID, Name: n.Name, Addr: n.Addr, Peer: n.Peer, Store: has}
	return id.write(store)
}

// settings are what a cluster is founded with, beside its first node's name and addresses.
func settings(m *clustermap.Map) string {
	n := m.Nodes[0]
	return fmt.Sprintf("group %d, replicas %d, weight %d, down after %d s, RESP at %q, domain %q",
		cmp.Or(m.Group, clustermap.DefaultGroup), max(m.Replicas, 1), max(n.Weight, 1), m.Silence.After, n.RESP,
		strings.Join(n.Domain, "/"))
}

// Found makes a cluster of one node, whose store is to be in a directory. m has that node alone. It gives the map that
// the cluster has. A directory in which it was begun and not finished goes on with the map that it was begun with.
//
// Errors: Invalid (the map), Conflict (the directory is a node's), Failed, Deadline of ctx.
func Found(ctx context.Context, store string, m *clustermap.Map, log *slog.Logger) (_ *clustermap.Map, err error) {
	if len(m.Nodes) != 1 {
		return nil, skep.Invalidf(op, "nodes", len(m.Nodes), "1: a cluster is founded by one, and others are added")
	}
	if _, err := (*clustermap.Map)(nil).Apply(&clustermap.Command{Do: clustermap.Found, Map: m}); err != nil {
		return nil, err
	}
	if err := prepare(store); err != nil {
		return nil, err
	}
	c, err := consensus.Open(consensus.Options{
		ID: m.Nodes[0].ID, Dir: Dir(store), Listener: newDeaf(), Found: m, Known: m, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	heard := make(chan *clustermap.Map, 1)
	stop := c.Watch(func(m *clustermap.Map) {
		select {
		case heard <- m:
		default:
		}
	})
	defer stop()
	select {
	case got := <-heard:
		want, n := m.Nodes[0], got.Nodes[0]
		if n.ID != want.ID || n.Name != want.Name || n.Addr != want.Addr || n.Peer != want.Peer {
			return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "directory", Value: Dir(store),
				Limit: fmt.Sprintf("one where no other node was begun: it has %s at %s and %s", n.Name, n.Addr, n.Peer)}
		}
		if given, has := settings(m), settings(got); given != has {
			return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "settings of the cluster", Value: given,
				Limit: has + ": it was begun with that"}
		}
		return got, finish(store, n, got, "") // the store that is there, if one is
	case <-c.Failed():
		return nil, &skep.Error{Op: op, Kind: skep.Failed, Field: "directory", Value: Dir(store)}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Begun says whether a directory that is no node's has a log all the same: of a Found that was cut off, which goes on
// with it. It refuses one of a Join.
func Begun(store string) bool {
	_, err := os.Stat(filepath.Join(Dir(store), "log"))
	return err == nil && !Asked(store)
}

// Join makes a directory that of a node which add has the cluster take in. The node begins without blocks: whatever it
// had before, in this cluster or by itself, others may have deleted without it. It may be called again where it was cut
// off, if add is Add.
//
// Errors: Conflict (the directory is a node's, or has a store), Failed, those of add.
func Join(
	ctx context.Context, store, name string, log *slog.Logger, add func(context.Context) (Added, error),
) (*clustermap.Map, error) {
	if err := prepare(store); err != nil {
		return nil, err
	}
	if err := refuseStored(store); err != nil {
		return nil, err
	}
	// Where the directory has asked, the log is of a Join that was cut off: no node has agreed to anything in it.
	if Begun(store) {
		return nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "directory", Value: Dir(store),
			Limit: "one without what a node has left"}
	}
	added, err := add(ctx)
	if err != nil {
		return nil, err
	}
	m := added.Map
	if m == nil || added.Cluster == "" {
		return nil, skep.Invalidf(op, "answer", "no map or no cluster", "the map with the node, and its cluster")
	}
	n, err := m.Node(name)
	if err != nil {
		return nil, err
	}
	// It has agreed to nothing yet, and from here on a directory without a log has lost it. It listens to no other
	// cluster, such as one that this machine was in before.
	c, err := consensus.Open(consensus.Options{
		ID: n.ID, Dir: Dir(store), Listener: newDeaf(), Cluster: added.Cluster, Known: m, Logger: log,
	})
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		return nil, err
	}
	if err := finish(store, *n, m, unmade); err != nil {
		return nil, err
	}
	return m, Forget(store)
}

// deaf is a listener that nobody reaches.
type deaf struct {
	closed chan struct{}
	once   sync.Once
}

func newDeaf() *deaf { return &deaf{closed: make(chan struct{})} }

// Accept implements net.Listener.
func (d *deaf) Accept() (net.Conn, error) {
	<-d.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr implements net.Listener.
func (*deaf) Addr() net.Addr { return &net.TCPAddr{} }
