package member

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// AskJoin asks a server to have its cluster take a node in. The server is asked twice: first it says in Added.Cluster,
// without a map, which cluster has agreed that it has no node of that name. Told of that, it adds the node, or finds that
// it has been added since: an answer may be lost, and the question come again.
type AskJoin struct {
	Node   clustermap.Node `json:"node"`
	Lacked string          `json:"lacked,omitempty"` // the cluster that said so; empty: none yet
}

// asked is what a directory keeps of that: the cluster had no node of the name before it was asked for one.
type asked struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	Lacked string `json:"lacked"`
}

func askedFile(store string) string { return filepath.Join(Dir(store), "join.json") }

// Asked says whether a directory that is no node's yet has asked a cluster to be one.
func Asked(store string) bool {
	_, err := os.Stat(askedFile(store))
	return err == nil
}

// lacked is the cluster that had no node of the name when the directory asked it; empty: it has asked none.
func lacked(store, name string) (string, error) {
	b, err := readFile(askedFile(store), maxIdentity)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var a asked
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil || a.Format != format {
		return "", &skep.Error{Op: op, Kind: skep.Damaged, Field: "file", Value: askedFile(store), Limit: format, Err: err}
	}
	if a.Name != name {
		return "", nil
	}
	return a.Lacked, nil
}

// Forget takes that out of a directory that is a node's now.
func Forget(store string) error {
	if err := os.Remove(askedFile(store)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &skep.Error{Op: op, Kind: skep.Failed, Field: "file", Value: askedFile(store), Err: err}
	}
	return nil
}

// Add has a cluster take in the node of a directory, which Join has prepared, by calls on a server of it. It may be
// called again, after a crash, too, where it is not known what became of the call: the directory remembers the cluster
// as one that had no node of that name. So the node that it has now is this one, added by an answer that was lost. A
// directory that was lost remembers nothing, and is refused while the cluster has its node.
//
// Errors: those of ask, Conflict (the cluster has another node of that name), Damaged, Failed.
func Add(
	ctx context.Context, store string, n *clustermap.Node, ask func(ctx context.Context, call string, in, out any) error,
) (Added, error) {
	q := AskJoin{Node: *n}
	var err error
	if q.Lacked, err = lacked(store, n.Name); err != nil {
		return Added{}, err
	}
	for {
		var added Added
		err := ask(ctx, "cluster join", &q, &added)
		switch {
		case errors.Is(err, skep.Unsupported): // by a version that knows one call only
			err = ask(ctx, "cluster add", n, &added)
			return added, err
		case skep.KindOf(err) == skep.Conflict:
			if bad := Forget(store); bad != nil {
				err = bad
			}
			return added, err
		case err != nil || added.Map != nil || added.Cluster == q.Lacked:
			return added, err
		}
		q.Lacked = added.Cluster
		b, err := json.Marshal(&asked{format, n.Name, q.Lacked})
		if err == nil {
			err = replace(askedFile(store), b)
		}
		if err != nil {
			return Added{}, err
		}
	}
}
