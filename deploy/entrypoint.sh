#!/bin/bash
# What Spark on Kubernetes asks of an image: `driver` with arguments of spark-submit, and `executor` with all it
# needs in the environment. Any other command is run as it is.
set -eu

case ${1:-} in
    driver)
        shift
        exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
        ;;
    executor)
        # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on: an option each, which may contain blanks.
        java_options=()
        for ((number = 0; ; number++)); do
            option=SPARK_JAVA_OPT_$number
            [ -n "${!option+set}" ] || break
            java_options+=("${!option}")
        done
        exec java "${java_options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_CONF_DIR:$SPARK_HOME/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
        ;;
    *)
        exec "$@"
        ;;
esac
