package member

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func nodeOf(name string) clustermap.Node {
	return clustermap.Node{ID: 1, Name: name, Addr: "unix:/" + name, Peer: "127.0.0.1:7441", Weight: 1}
}

func mapOf(name string) *clustermap.Map {
	return &clustermap.Map{Epoch: 1, Seed: clustermap.Seed{1}, Group: 16, Nodes: []clustermap.Node{nodeOf(name)}}
}

// A directory is founded once. What was begun and not finished goes on as it was begun, and for no other node.
func TestFound(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	id, m, err := Read(dir)
	require.NoError(t, err)
	require.Nil(t, id)
	require.Nil(t, m)
	first, err := Found(t.Context(), dir, mapOf("a"), nil)
	require.NoError(t, err)
	id, m, err = Read(dir)
	require.NoError(t, err)
	require.Equal(t, &Identity{Format: 1, ID: 1, Name: "a", Addr: "unix:/a", Peer: "127.0.0.1:7441"}, id)
	require.Equal(t, first, m)
	_, err = Found(t.Context(), dir, mapOf("a"), nil)
	require.ErrorIs(t, err, skep.Conflict)
	_, err = Join(t.Context(), dir, "a", nil, nil)
	require.ErrorIs(t, err, skep.Conflict)

	require.NoError(t, os.Remove(filepath.Join(Dir(dir), "node.json")))
	_, err = Join(t.Context(), dir, "a", nil, nil)
	require.ErrorIs(t, err, skep.Conflict, "it is another cluster's")
	_, err = Found(t.Context(), dir, mapOf("b"), nil)
	require.ErrorIs(t, err, skep.Conflict)
	for what, change := range map[string]func(*clustermap.Map){
		"group 4": func(m *clustermap.Map) { m.Group = 4 }, "replicas 2": func(m *clustermap.Map) { m.Replicas = 2 },
		"weight 3":        func(m *clustermap.Map) { m.Nodes[0].Weight = 3 },
		"after 60 s":      func(m *clustermap.Map) { m.Silence.After = 60 },
		`"10.0.0.9:6379"`: func(m *clustermap.Map) { m.Nodes[0].RESP = "10.0.0.9:6379" },
		`"west/r1"`:       func(m *clustermap.Map) { m.Nodes[0].Domain = []string{"west", "r1"} },
	} {
		with := mapOf("a")
		change(with)
		_, err = Found(t.Context(), dir, with, nil)
		require.ErrorIs(t, err, skep.Conflict, what)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "group 16, replicas 1, weight 1, down after 0 s")
	}
	other := mapOf("a")
	other.Seed[0]++
	again, err := Found(t.Context(), dir, other, nil)
	require.NoError(t, err)
	require.Equal(t, first, again, "the seed that it was begun with")

	two := mapOf("a")
	two.Nodes = append(two.Nodes, clustermap.Node{ID: 2, Name: "b", Addr: "unix:/b", Peer: "127.0.0.1:7442", Weight: 1})
	for _, bad := range []*clustermap.Map{two, {Epoch: 1, Nodes: []clustermap.Node{nodeOf("a")}}} {
		none := filepath.Join(t.TempDir(), "d")
		_, err = Found(t.Context(), none, bad, nil)
		require.ErrorIs(t, err, skep.Invalid)
		require.NoDirExists(t, none)
	}
}

// A node that is added has its directory once the cluster has taken it in, and not sooner.
func TestJoin(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	refused := &skep.Error{Op: "add", Kind: skep.Unavailable}
	_, err := Join(t.Context(), dir, "a", nil, func(context.Context) (Added, error) { return Added{}, refused })
	require.ErrorIs(t, err, skep.Unavailable)
	id, _, err := Read(dir)
	require.NoError(t, err)
	require.Nil(t, id)
	_, err = Join(t.Context(), dir, "a", nil, func(context.Context) (Added, error) { return Added{Map: mapOf("a")}, nil })
	require.ErrorContains(t, err, "no cluster")
	m, err := Join(t.Context(), dir, "a", nil, func(context.Context) (Added, error) {
		return Added{mapOf("a"), "6c0f3a5e9b1d4827a3c5e7f90b2d4861"}, nil
	})
	require.NoError(t, err)
	id, got, err := Read(dir)
	require.NoError(t, err)
	require.Equal(t, "a", id.Name)
	require.Equal(t, m, got)
	next := mapOf("a")
	next.Epoch = 7
	require.NoError(t, WriteMap(dir, next))
	_, got, err = Read(dir)
	require.NoError(t, err)
	require.Equal(t, next, got)
	left, err := filepath.Glob(filepath.Join(Dir(dir), "*.json*"))
	require.NoError(t, err)
	require.Len(t, left, 2, "no file but these: %v", left)
}

// A join that was cut off once the cluster had the node goes on when it is made again.
func TestAJoinThatIsCutOffGoesOn(t *testing.T) {
	t.Parallel()
	const of = "6c0f3a5e9b1d4827a3c5e7f90b2d4861"
	dir, n := filepath.Join(t.TempDir(), "d"), nodeOf("a")
	var asked []string
	join := func() error {
		_, err := Join(t.Context(), dir, "a", nil, func(ctx context.Context) (Added, error) {
			return Add(ctx, dir, &n, func(_ context.Context, call string, in, out any) error {
				require.Equal(t, "cluster join", call)
				q, added := in.(*AskJoin), out.(*Added)
				asked = append(asked, q.Lacked)
				if added.Cluster = of; q.Lacked == of {
					added.Map = mapOf("a")
				}
				return nil
			})
		})
		return err
	}
	inTheWay := filepath.Join(Dir(dir), "map.json", "x")
	require.NoError(t, os.MkdirAll(inTheWay, 0o700))
	require.ErrorIs(t, join(), skep.Failed)
	require.DirExists(t, filepath.Join(Dir(dir), "log"))
	require.NoError(t, os.RemoveAll(filepath.Dir(inTheWay)))
	require.NoError(t, join())
	require.Equal(t, []string{"", of, of}, asked, "it remembers the cluster")
	id, _, err := Read(dir)
	require.NoError(t, err)
	require.Equal(t, "a", id.Name)
	require.False(t, Asked(dir))

	// Of another name, or of none, it remembers nothing; what cannot be read is named.
	write := func(text string) { require.NoError(t, os.WriteFile(askedFile(dir), []byte(text), 0o600)) }
	write(`{"format": 1, "name": "b", "lacked": "` + of + `"}`)
	got, err := lacked(dir, "a")
	require.NoError(t, err)
	require.Empty(t, got)
	for _, bad := range []string{"", `{"format": 2}`, `{"format": 1, "dance": 1}`} {
		write(bad)
		_, err = lacked(dir, "a")
		require.ErrorIs(t, err, skep.Damaged, bad)
		require.ErrorContains(t, err, "join.json")
	}
}

// What is damaged, of another version, or lacks what the node has agreed to, is refused by name.
func TestADamagedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	_, err := Found(t.Context(), dir, mapOf("a"), nil)
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(Dir(dir), name) }
	node, err := os.ReadFile(at("node.json"))
	require.NoError(t, err)
	for text, kind := range map[string]skep.Kind{
		"":                         skep.Damaged,
		`{"format": 2}`:            skep.Version,
		`{"format": 1, "id": 1}`:   skep.Damaged,
		`{"format": 1, "dance":1}`: skep.Damaged,
	} {
		require.NoError(t, os.WriteFile(at("node.json"), []byte(text), 0o600))
		_, _, err = Read(dir)
		require.ErrorIs(t, err, kind, text)
		require.ErrorContains(t, err, "node.json")
	}
	require.NoError(t, os.WriteFile(at("node.json"), node, 0o600))
	require.NoError(t, os.WriteFile(at("map.json"), []byte("{}"), 0o600))
	_, _, err = Read(dir)
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, "map.json")
	require.NoError(t, os.WriteFile(at("map.json"), make([]byte, clustermap.MaxBytes+1), 0o600))
	_, _, err = Read(dir)
	require.ErrorIs(t, err, skep.Damaged)
	require.NoError(t, os.RemoveAll(at("log")))
	_, _, err = Read(dir)
	require.ErrorIs(t, err, skep.Damaged)
	require.ErrorContains(t, err, "skep cluster remove")
}

// A node that is added begins without blocks: a directory that has a store is refused, whatever its name has in it, and
// nothing is asked of the cluster.
func TestJoinRefusesAStore(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"catalog", "catalog.old-20260101T000000Z", "device-0"} {
		dir := filepath.Join(t.TempDir(), "d[1]")
		require.NoError(t, os.MkdirAll(filepath.Join(dir, of), 0o700))
		_, err := Join(t.Context(), dir, "a", nil, func(context.Context) (Added, error) {
			t.Error("the cluster was asked")
			return Added{}, nil
		})
		require.ErrorIs(t, err, skep.Conflict)
		require.ErrorContains(t, err, filepath.Join(dir, of))
		id, _, err := Read(dir)
		require.NoError(t, err)
		require.Nil(t, id)
	}
}

// A node has the store that it had first. One that was added takes an empty one only; the first node of a cluster the
// one that is there.
func TestANodeHasOneStore(t *testing.T) {
	t.Parallel()
	none := t.TempDir()
	require.NoError(t, Bind(none, "a store", false), "it is no node's directory")
	first := filepath.Join(t.TempDir(), "d")
	_, err := Found(t.Context(), first, mapOf("a"), nil)
	require.NoError(t, err)
	added := filepath.Join(t.TempDir(), "d")
	_, err = Join(t.Context(), added, "a", nil, func(context.Context) (Added, error) {
		return Added{mapOf("a"), "6c0f3a5e9b1d4827a3c5e7f90b2d4861"}, nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, Bind(added, "", false), skep.Conflict, "nobody knows what is in it")
	require.ErrorIs(t, Bind(added, "one", false), skep.Conflict)
	require.NoError(t, Bind(added, "", true))
	require.ErrorIs(t, Bind(added, "", false), skep.Conflict, "as before")
	require.NoError(t, Bind(added, "one", true))
	require.NoError(t, Bind(first, "one", false))
	for _, dir := range []string{first, added} {
		require.NoError(t, Bind(dir, "one", false))
		require.NoError(t, Bind(dir, "", false), "its devices are away")
		err := Bind(dir, "two", false)
		require.ErrorIs(t, err, skep.Conflict)
		require.ErrorContains(t, err, "store one, which node a has had")
		require.NoError(t, Bind(dir, "two", true), "its drives were lost, and it begins anew")
		require.ErrorIs(t, Bind(dir, "one", false), skep.Conflict)
	}
	_, err = StoreOf(filepath.Join(Dir(first), "node.json"))
	require.Error(t, err)
}
