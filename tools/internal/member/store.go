package member

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/segment"
)

// A node has one store for as long as the map has the node. What a node that is in no map has stored may have been
// deleted by the others since, and they remember nothing for it: so a node that is added begins without blocks, and
// none goes on with the store of another.

// unmade is Identity.Store of a node that was added and has not been started: its store is yet to be made.
const unmade = "unmade"

// stored is what of a store lies in a directory; empty: nothing.
func stored(dir string) (string, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return "", &skep.Error{Op: op, Kind: skep.Failed, Field: "directory", Value: dir, Err: err}
	}
	for _, e := range list {
		if name := e.Name(); name == "catalog" || strings.HasPrefix(name, "catalog.") || strings.HasPrefix(name, "device-") {
			return filepath.Join(dir, name), nil
		}
	}
	return "", nil
}

// refuseStored refuses a directory that has a store, for a node that is to be added.
func refuseStored(dir string) error {
	found, err := stored(dir)
	if err != nil || found == "" {
		return err
	}
	return &skep.Error{Op: op, Kind: skep.Conflict, Field: "directory", Value: dir,
		Limit: fmt.Sprintf("one without a store: of what %s has, the cluster may have deleted something since", found)}
}

// StoreOf is the id of the store that a device is of, in hexadecimal.
//
// Errors: Failed (it cannot be read), those of a device of no store.
func StoreOf(device string) (string, error) {
	pages := make([]byte, 2*layout.PageSize)
	f, err := os.Open(device)
	if err == nil {
		defer f.Close()
		_, err = f.ReadAt(pages, 0)
	}
	if err != nil {
		return "", &skep.Error{Op: op, Kind: skep.Failed, Field: "device", Value: device, Err: err}
	}
	sb, _, err := segment.ChooseSuperblock(pages[:layout.PageSize], pages[layout.PageSize:])
	return sb.Store.String(), err
}

// Bind has a store be that of the node whose directory it is opened in, from now on. An empty one, which has no
// namespace, is any node's. id is the store's, in hexadecimal; empty: no device of it can be read.
//
// Errors: Conflict (the store is another one than the node had, or the node is to begin with an empty one), Failed.
func Bind(dir, id string, empty bool) error {
	who, _, err := Read(dir)
	if err != nil || who == nil || id == who.Store || id == "" && (who.Store != unmade || empty) {
		return err
	}
	if who.Store != "" && !empty {
		of := "store " + who.Store + ", which node " + who.Name + " has had"
		if who.Store == unmade {
			of = "an empty one: node " + who.Name + " was added and has stored nothing yet"
		}
		return &skep.Error{Op: op, Kind: skep.Conflict, Field: "store", Value: id,
			Limit: of + "; what is in another the cluster may have deleted since: wipe it"}
	}
	who.Store = id
	return who.write(dir)
}
