package clustermap

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// printable says whether a text is UTF-8 that can be printed. All nodes decide the same of it, whichever version of Go
// they were built by: a command that one of them refused, and another one carried out, would have them go by two maps.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		at, found := slices.BinarySearch(printedBounds(), r)
		if found {
			at++
		}
		return at%2 == 0
	})
}

// printedBounds are where runes that can be printed begin, and end, in turn.
var printedBounds = sync.OnceValue(func() (bounds []rune) {
	b, _ := base64.RawStdEncoding.DecodeString(printed) // a test decodes it
	for at := rune(0); len(b) > 0; {
		step, n := binary.Uvarint(b)
		at, b = at+rune(step), b[max(n, 1):]
		bounds = append(bounds, at)
	}
	return bounds
})

// printed is unicode.IsPrint of Unicode 15.0.0: how many runes cannot be printed from 0 on, how many can after those,
// and so on, as varints. It stays as it is.
const printed = "" +
	"IF8iDAHKBQIGBAcBAQEUAY0DASYCMgIDATcIGwQGERYBwAEBMAI7AmUOOwIxAg8BHAIBAQsFHwlKAaEBAQgCAgIWAQcBAQMEAgkCAgIECAEEAg" +
	"EFAhkCAwEGBAICFgEHAQIBAgECAgEBBQQCAgMDAQcEAQEHEQoDAQkBAwEWAQcBAgEFAgoBAwEDAgEPBAIMBwcBAwEIAgICFgEHAQIBBQIJAgIC" +
	"AwcDBAIBBQISCgIBBgMDAQQDAgEBAQIDAgMDAwwEBQMDAQQCAQYBDhUFDQEDARcBEAIJAQMBBAcCAQMCAQIEAgoHFgEDARcBCgEFAgkBAwEEBw" +
	"IGAgEEAgoBAwwNAQMBMwEDAQYEEAIaAQMBEgMYAQkBAQIHAwEEBgEBAQgGCgIDDDoEHSUCAQEBBQEYAQEBFwIFAQEBBwEKAgQgSAEkBCcBJAEP" +
	"AQ0lxgEBAQUBAvkCAQQCBwEBAQQCKQEEAiEBBAIHAQEBBAIPATkBBAJDAiADGgZWAgYCgAUBHANZBxYJGAkUDA0BAwECDF4CCgYKBg4BCwZZBy" +
	"sFRgofAQwEDAQBAyoCBQssBBoGCwM+AkEBHQILBgoGDgIfMU0DLwF0CDwDDwM8BysCCwgrBZYEAgYCJgIGAggBAQEBAQEBHwI1AQ8BDgIGARMC" +
	"AwEJERgILxECAhsBDQMhDyEPjAEElwUZCxWUDgIgAd0CBS0BAQUBAjgHAg4YCQcBBwEHAQcBBwEHAQcBBwF+IhoBWQzWARoMBT8BVgJnBSsBXg" +
	"FUDC8B7eQBAzcJ3AIUuAEIywEFAgEBAQUYOwMKBjgIRggMBnQLHgNOAQsEIQE3CQ4CCgJnGBwKBgIGAgYJBwEHATwEfgIKBqRXDBcEMYRC7gIC" +
	"aiYHDAUFGgEFAQEBAgECAX0QvQMCNgcBICoGMwETAQQEBQGHAQS+AQMGAgYCBgIDAwcBBw0CAgwBGgETAQIBDwIOInsFAwQtA1gBDQMBLy6CAR" +
	"0DMQ8cBCQJHgUrBR4BJQQOKp4BAgoGJAQkBCgINAsMAQ8BBwECAQsBDwEHAQJDtwIJFgoIGAYBKgEJRQYCAQEsAQIDAQIXAUgICTATAQIFIQMb" +
	"BQFAOAQUAjIBAgUIAQMBHQIDBAoHCQdAICcEDAk2Ax0CGwUaBwQMB1BJNzMNMwcuCAqmAh8BKgEDAgJLKwgqFhomHBQXCU4EJAk+AQUNGQcKBj" +
	"UBEggnCWABFAsSAS8+BwEBAQQBDwELBjsFCgYEAQgCAgIWAQcBAgEFAQoCAgIDAgEGAQUHAgcDBYsBXAEFHkgICqYBNgImIkULCgYNEzoGCjYb" +
	"Ag8EF7kBPGRTDAgCAQIIAQIBHgECAgwJCkYIAi4CCxtICFMNSQcK9gEJAS0BDgodAyACFgEOSQcBAgEsAwEBAgEJCAoGBgECASUBAgEGBwq2Ah" +
	"kHEQEpAxxWAQ8yDZsHZm8BBQvEAcwUYw2wCBAWqh/HBLlDuQQHHwEKBFEBCgYeAgYKRgoKAQcBFQUTsAVbZUsEOQcRQAULAg74LwjWCSoJ50UE" +
	"AQcBAgGjAg8BHQMCAQ4ECIwDhBJrBQ0DCQcKAgTgJC4CFwl0PPYBCicCSghwFUZ6FAwUDFcJGYcBVQFHAQICAQICAgQBDAEBAQcBQQEEAggBBw" +
	"EcAQQBBQEBAwcB1AICpAICvgUPBQEP0AgfBgbVAQcBEQIHAQIBBQU+IQFwLQMOAgoEAsACHxE6BQHQAyrmBQcBBAECAQ8BxQECEClMBAoEApEG" +
	"REw9wgEEARsBAgEBAgEBCgEEAQEBAQYBBAEBAQEBAQMBAgEBAgEBAQEBAQEBAQECAQECBAEHAQQBBAEBAQoBEQUDAQUBETQCjgIsBGQMDwIPAQ" +
	"8BJQquATgdDSwECQcCDgaaAdgHBBEDDQN3BF8GDAQBDwwEOAgKBigIHgICTtQCDA4CDQMJBy4BBwgOBAkHCQeTAQE3JQqGCODNAiC6IAbeAQKC" +
	"LQ6xOp8YngTiC8smBeAg0Lor8AGQ/As"
