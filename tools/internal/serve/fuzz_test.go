package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/wire/auth"
)

// FuzzSecretFiles: a file of a token or of encryption keys gives what is in it, or an error that
// does not repeat it.
func FuzzSecretFiles(f *testing.F) {
	key := strings.Repeat("0a", 32)
	for _, text := range []string{"", "short", "  a token that is long enough\n", key, "# newest\n" + key + "\n\n" + strings.Repeat("F0", 32) + "\r\n",
		strings.Repeat("x", maxTokenBytes+1), strings.Repeat("g", 64), key + key, "\x00\xff" + key} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "secret")
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(file, text, 0o600))
		said := ""
		var cred auth.Credential
		if err := (&CredentialConfig{TokenFile: file}).secret(&cred, noEnv); err != nil {
			said = err.Error()
		} else {
			want, err := auth.TokenHash(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			require.Equal(t, want, cred.TokenSHA256)
		}
		c := Default()
		c.Store.EncryptionKeyFile = file
		keys, wrong := c.encryptionKeys(noEnv)
		for _, err := range wrong {
			said += err.Error()
		}
		if len(wrong) == 0 {
			again, err := store.ParseEncryptionKeys(text)
			require.NoError(t, err)
			require.Equal(t, again, keys[""])
			require.NotEmpty(t, again)
		}
		for _, line := range strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' }) {
			if len(line) >= 32 { // shorter ones may be words of the error
				require.NotContains(t, said, line)
			}
		}
	})
}
