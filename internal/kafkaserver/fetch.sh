#!/bin/sh
# Fetches a Kafka broker's jars with Maven into the user's cache and prints the directory that holds them.
# Once they are there it only prints. Two may run at once: the jars appear in one rename.
set -eu

version=${KAFKA_VERSION:-4.3.1}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/outboxrelay
jars=$cache/kafka-$version

if [ -d "$jars" ]; then
	echo "$jars"
	exit 0
fi
command -v mvn >/dev/null || {
	echo "kafka-fetch: mvn not found: install Maven" >&2
	exit 1
}

mkdir -p "$cache"
# Where flock(1) exists, the second fetch waits and finds the jars instead of fetching them too.
if command -v flock >/dev/null; then
	exec 9>"$jars.lock"
	flock 9
	if [ -d "$jars" ]; then
		echo "$jars"
		exit 0
	fi
fi

work=$(mktemp -d "$cache/.kafka-fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# log4j-slf4j-impl gives the broker a log; without it, it runs in silence.
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
POM

mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies \
	-DoutputDirectory="$work/jars" -DincludeScope=runtime >&2

# Somebody without flock may have been faster; theirs is as good.
[ -d "$jars" ] || mv "$work/jars" "$jars"
echo "$jars"
