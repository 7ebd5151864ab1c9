package bucket

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/skepkv/skep"
)

// Bucket is object storage. Names are of lower-case letters, digits, '-' and '/'. What was put is seen by every Get
// and List that begins after it.
type Bucket interface {
	// Put stores an object, all of it or nothing. After an error it may be there. Names that end in /spec are put again,
	// by any node, as bytes that differ and say the same: one of them is there. Announcements and deletions are put again,
	// by who has put them, as the same bytes; objects of blocks are not.
	Put(ctx context.Context, name string, body []byte) error
	// Get gives n bytes of an object from off on; n below 0: all of it. What was cut off on its way is an error: what
	// is Damaged is removed, and of a deletion with all that it may concern.
	//
	// Errors: NotFound; Damaged where all of it is more than MaxObjectBytes; Unavailable and others where it cannot be
	// asked, or does not give those bytes.
	Get(ctx context.Context, name string, off, n int64) ([]byte, error)
	// List calls each with every object whose name begins with prefix, in the order of names, until it returns an
	// error.
	List(ctx context.Context, prefix string, each func(Object) error) error
	// Delete removes objects. One that is gone is no error.
	Delete(ctx context.Context, names []string) error
}

// Object is one that is stored.
type Object struct {
	Name string
	Size int64
}

// KeySize is the length of Options.Key in bytes.
const KeySize = 32

// A space is where the objects of one namespace are: SPACE/b/ID has blocks, SPACE/d/ID says what of them was deleted,
// SPACE/u/ID what was deleted of such as may come yet, SPACE/a/ID announces an object, SPACE/spec says whose they are.
const (
	announcedDir = "/a/" // before blocksDir in the order of names: see announcement
	blocksDir    = "/b/"
	deletedDir   = "/d/"
	unsureDir    = "/u/"
	specName     = "/spec"
	spaceSize    = 32 // hexadecimal digits
)

// spaceOf is the name of a namespace's space. It tells nobody without the key of what it is.
func spaceOf(key []byte, n *skep.NamespaceSpec) string {
	b, err := json.Marshal(struct {
		Tenant, Name, Model string
		Shape               skep.Shape
	}{n.Tenant, n.Name, n.Model, n.Shape})
	if err != nil {
		panic(fmt.Sprintf("a namespace that was opened has no text: %v", err))
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte("skep space\n"))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil)[:spaceSize/2])
}

// idTime is how many of an id's digits say when it was drawn, in milliseconds.
const idTime = 12

// drawID is a name that no object has had; names grow with time.
func drawID(now time.Time) string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%0*x-%s", idTime, now.UnixMilli(), hex.EncodeToString(b[:]))
}

// split takes a name apart; false: it is none of ours.
func split(name string) (space, dir, id string, ok bool) {
	if len(name) <= spaceSize {
		return "", "", "", false
	}
	space, rest := name[:spaceSize], name[spaceSize:]
	if _, err := hex.DecodeString(space); err != nil {
		return "", "", "", false
	}
	if rest == specName {
		return space, specName, "", true
	}
	for _, dir := range []string{announcedDir, blocksDir, deletedDir, unsureDir} {
		if id, is := strings.CutPrefix(rest, dir); is && id != "" {
			return space, dir, id, true
		}
	}
	return "", "", "", false
}
