package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// maxKeyBytes is the longest key file.
const maxKeyBytes = 64 << 10

// encryptionKeys reads the tenants' keys from where c says; "" is all other tenants.
// Errors name the file or variable, and never what is in it.
func (c *Config) encryptionKeys(environ func(string) (string, bool)) (keys map[string][]store.EncryptionKey, wrong []error) {
	keys = map[string][]store.EncryptionKey{}
	read := func(tenant, at, file, env string) {
		var text []byte
		var err error
		x := &skep.Error{Op: "settings", Kind: skep.Invalid, Field: at + "encryption_key_file", Value: file}
		switch {
		case file != "" && env != "":
			wrong = append(wrong, problem(at+"encryption_key_file and "+at+"encryption_key_env", "both set", "one of them"))
			return
		case file != "":
			text, err = readFile(file, maxKeyBytes)
		case env != "":
			x.Field, x.Value = at+"encryption_key_env", env
			v, ok := environ(env)
			if text = []byte(v); !ok {
				err = errors.New("this variable is not set")
			}
		default:
			return
		}
		if err == nil {
			keys[tenant], err = store.ParseEncryptionKeys(text)
		}
		if err != nil {
			if x.Err = err; errors.Is(err, fs.ErrNotExist) {
				x.Err = fmt.Errorf("%w: put it back, for nothing else reads what it encrypts; a new one is made by "+
					"openssl rand -hex 32 > %s", err, file)
			}
			wrong = append(wrong, x)
		}
	}
	read("", "store.", c.Store.EncryptionKeyFile, "")
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		read(name, "tenants."+name+".", c.Tenants[name].EncryptionKeyFile, c.Tenants[name].EncryptionKeyEnv)
	}
	return keys, wrong
}

// tellEncrypted logs which tenants' payload is encrypted, and the name of its key.
func (s *server) tellEncrypted(keys map[string][]store.EncryptionKey) {
	for _, tenant := range slices.Sorted(maps.Keys(keys)) {
		name := tenant
		if name == "" {
			name = "all others"
		}
		s.log.Info("payload is encrypted at rest", "tenant", name, "key_id", keys[tenant][0].ID(), "older_keys", len(keys[tenant])-1)
	}
}

// replaceKeys gives the store the keys as they are now, where it takes some. It says whether they could be read.
func (s *server) replaceKeys(next *Config) bool {
	st, ok := skep.As[*store.Store](s.st)
	if !ok {
		return true
	}
	keys, wrong := next.encryptionKeys(os.LookupEnv)
	if len(wrong) == 0 {
		set := func() error { return st.SetEncryptionKeys(keys) }
		var err error
		if s.gate != nil {
			err = s.gate.Replace(keyed(keys), set)
		} else {
			err = set()
		}
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	for _, err := range wrong {
		s.log.Error("encryption keys not reloaded: those in use stay", "error", err)
	}
	if len(wrong) == 0 {
		s.tellEncrypted(keys)
	}
	return len(wrong) == 0
}
