package sink

import (
	"fmt"
	"strings"
)

// checkTopic tells why Kafka, or we, would refuse the name; "" when it is fine. Names that start with two
// underscores are the brokers' own.
func checkTopic(name string) string {
	switch {
	case name == "":
		return "the topic's name is empty"
	case len(name) > 249:
		return fmt.Sprintf("the topic's name has %d characters, Kafka allows 249", len(name))
	case name == "." || name == "..":
		return "the topic's name is . or .., which Kafka refuses"
	case strings.HasPrefix(name, "__"):
		return "topics that start with __ belong to Kafka itself"
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return "the topic's name has a character other than a-z A-Z 0-9 . _ -"
		}
	}
	return ""
}
