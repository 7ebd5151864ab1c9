//go:build !unix

package catalog

func descriptorLimit() int { return mostOpenFiles * 4 }
